"""The compiled kernel. Everything else about the package is in pyproject.toml.

The kernel is optional: where it cannot be compiled, its NumPy twin does the same work, slower.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "brim.plan._kernel",
            ["src/brim/plan/_kernel.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
