"""Equal calls that are under way together: one of them, the leader, is asked, and the others get its answer.

Only calls whose answers would be equal anyway are joined (`Call.joinable`). If the leader fails for a reason of its
own, such as its deadline, the next one takes its place: no call fails because of the deadline of another.
"""

from collections.abc import Sequence

from brim.llm.engine.job import Job


class Joined:
    """The leaders, by the keys of their calls."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Job] = {}

    def join(self, job: Job) -> bool:
        """Whether an equal call is under way, which this one now follows. Otherwise this one leads."""
        assert job.key is not None
        leader = self._leaders.setdefault(job.key, job)
        if leader is job:
            return False
        leader.followers.append(job)
        job.leader = leader
        return True

    def leave(self, job: Job) -> Sequence[Job]:
        """Note that a call has ended. Returns the calls that followed it, which are released."""
        if job.leader is not None:
            job.leader.followers.remove(job)
            job.leader = None
        if job.key is None or self._leaders.get(job.key) is not job:
            return ()
        del self._leaders[job.key]
        followers, job.followers = job.followers, []
        for follower in followers:
            follower.leader = None
        return followers
