# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Installs the engine and the command line without ROS, as pyproject.toml says.

Builds the CPU kernels (csrc/) where a C++ compiler is at hand; without them torch computes.
``python setup.py build_ext --inplace`` builds them for the source tree.
"""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# As in CMakeLists.txt.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
FLAGS += ["-Wall", "-Wextra", "-pthread", "-g0"]

KERNELS = Extension(
    "gemma_mtp_ros.engine._kernels",
    sources=sorted(glob("csrc/*.cpp")),
    depends=sorted(glob("csrc/*.h") + glob("csrc/*.inl")),
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,
)


class BuildKernels(build_ext):
    """Builds a plain shared library: no Python in it, nor in its name."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            print("gemma_mtp_ros: the CPU kernels could not be built (see above); torch will")
            print("compute instead, slower. Install a C++17 compiler and install again.")
            raise  # setuptools goes on: the extension is optional


setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildKernels})
