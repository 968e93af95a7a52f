"""torchdata's StatefulDataLoader over a `PlanBatchSampler`: its state is exact to the batch, whatever its workers are
ahead.
"""

import itertools
import json
from collections import Counter

import pytest
from support.runs import CUT, PACKED, PADDED, make_plan, make_store
from torchdata.stateful_dataloader import StatefulDataLoader

from brim import MismatchError, OptionError
from brim.batch.torch import PlanBatchSampler, TokenDataset, as_is

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # Python 3.12 about threads of the parent
    # On a machine with one core.
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
]

STORE = make_store()


def stateful(plan, *, rank=0, world_size=1, **options):
    sampler = PlanBatchSampler(plan, rank=rank, world_size=world_size)
    return StatefulDataLoader(TokenDataset(STORE, flat=True), batch_sampler=sampler, collate_fn=as_is, **options)


def taken(loading, count=None):
    return [(batch.epoch, batch.index) for batch in itertools.islice(loading, count)]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "snapshot_every_n_steps": 3, "persistent_workers": True}]
)
@pytest.mark.parametrize("config", [PADDED, PACKED, CUT], ids=["padded", "packed", "cut"])
def test_continued_after_any_batch_it_gives_the_rest_and_the_next_epochs(options, config):
    plan = make_plan(STORE, config, microbatches_per_step=2, num_epochs=2)
    whole = [(epoch, index) for epoch in range(2) for index in range(plan.num_microbatches(epoch))]
    first = plan.num_microbatches(0)
    for done in (1, 2, 5, first - 1, first, first + 1, len(whole) - 1):
        loading = stateful(plan, **options)
        before = []
        while len(before) < done:
            before += taken(loading, done - len(before))
        again = stateful(plan, **options)
        again.load_state_dict(json.loads(json.dumps(loading.state_dict())))
        after = taken(again)
        assert after or done == first  # the rest of an epoch, which may be over
        while len(before) + len(after) < len(whole):
            rest = taken(again)
            assert rest
            after += rest
        assert before + after == whole


def test_an_epoch_that_was_read_to_its_end_is_followed_by_the_next():
    plan = make_plan(STORE, num_epochs=3)
    loading = stateful(plan)
    for epoch in range(2):
        assert {batch.epoch for batch in loading} == {epoch}
    again = stateful(plan)
    again.load_state_dict(loading.state_dict())
    assert {batch.epoch for batch in again} == {2}
    with pytest.raises(OptionError, match="all 3 epochs of the plan are done"):
        list(again)


def test_a_loader_that_is_done_can_be_sent_back():
    plan = make_plan(STORE)
    loading = stateful(plan)
    first = taken(loading, 3)
    state = loading.state_dict()
    whole = taken(loading)
    loading.load_state_dict(state)
    assert first + taken(loading) == whole


def test_ranks_with_a_loader_each_see_every_sample_once():
    plan = make_plan(STORE, microbatches_per_step=4)
    ranks = [stateful(plan, rank=rank, world_size=3) for rank in range(3)]
    assert len({len(loading) for loading in ranks}) == 1
    assert Counter(id for loading in ranks for batch in loading for id in batch.ids) == Counter(range(60))


def test_the_state_of_another_plan_is_refused():
    loading, other = stateful(make_plan(STORE)), stateful(make_plan(STORE, seed=3))
    taken(other, 2)
    loading.load_state_dict(other.state_dict())
    with pytest.raises(MismatchError, match="belongs to another plan"):
        next(iter(loading))
