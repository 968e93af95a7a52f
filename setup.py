"""The compiled kernels. Everything else about the package is in pyproject.toml.

The kernels are optional: where they cannot be compiled, their NumPy twins do the same work, slower.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"brim.{part}._kernel",
            [f"src/brim/{part.replace('.', '/')}/_kernel.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3", "-ffp-contract=off"],  # sums are the same to the bit on every machine
            py_limited_api=True,
            optional=True,
        )
        for part in ("plan", "plan.packing", "batch", "stream.replay", "envs.arc.engine")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
