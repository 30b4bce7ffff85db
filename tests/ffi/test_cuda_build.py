"""The CUDA side of the build, as far as it can be seen without a GPU."""

import ctypes
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from ffi.exchanges import exchange

from coop_jax import _ext

needs_cuda = pytest.mark.skipif(not _ext.has_cuda, reason="built without CUDA")
needs_tools = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("ldd") is None, reason="needs Linux and ldd"
)


def test_platforms_of_the_build():
    registrations = _ext.registrations()
    arena = {"coop_exchange", "coop_checked_exchange", "coop_empty_arena"}
    assert set(registrations["cpu"]) == {"coop_fence", "coop_after", *arena}
    # It copies nothing, so it needs no CUDA to be built.
    anywhere = {"coop_after"}
    assert set(registrations["CUDA"]) == anywhere | (arena if _ext.has_cuda else set())


@needs_tools
def test_needs_no_cuda_library_to_load():
    libraries = subprocess.run(
        ["ldd", _ext.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert "libcuda" not in libraries
    assert "not found" not in libraries


@needs_cuda
def test_has_code_for_the_architectures_and_ptx_for_later_ones():
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        pytest.skip("needs cuobjdump")
    listing = subprocess.run(
        [cuobjdump, "--list-elf", "--list-ptx", _ext.__file__],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert re.search(r"sm_\d+\.cubin", listing)
    assert re.search(r"sm_\d+\.ptx", listing)


@needs_cuda
def test_registers_and_lowers_for_cuda():
    target = "coop_exchange_under_test_for_cuda"
    handler = _ext.registrations()["CUDA"]["coop_exchange"]
    jax.ffi.register_ffi_target(target, handler, platform="CUDA")
    step = jax.jit(lambda arena, x: exchange(arena, [], [x], store_at=[0]))
    lowered = step.trace(np.zeros(64, np.uint8), np.ones(4, np.float32)).lower(
        lowering_platforms=("cuda",)
    )
    assert "coop_exchange" in lowered.as_text()


# xla/ffi/api/c_api.h: what XLA asks a handler when it is registered.
class _Extension(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
    ]


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major_version", ctypes.c_int),
        ("minor_version", ctypes.c_int),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("api_version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type_id", ctypes.c_int64),
        ("later_fields", ctypes.c_int64 * 8),
    ]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.c_void_p)]


def call_frame_bytes(folder: pathlib.Path) -> int:
    """A handler takes frames of exactly one size, which only the header tells."""
    source = folder / "size.cc"
    source.write_text(
        "#include <cstdio>\n"
        '#include "xla/ffi/api/c_api.h"\n'
        'int main() { std::printf("%d", (int)XLA_FFI_CallFrame_STRUCT_SIZE); }\n'
    )
    command = ["c++", f"-I{jax.ffi.include_dir()}", source, "-o", folder / "size"]
    subprocess.run(command, check=True)
    return int(subprocess.check_output([folder / "size"]))


def traits(handler, frame_bytes) -> int:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(get_pointer(handler, None))
    metadata = _Metadata(
        struct_size=ctypes.sizeof(_Metadata),
        api_version=_Version(struct_size=ctypes.sizeof(_Version)),
    )
    extension = _MetadataExtension(
        _Extension(ctypes.sizeof(_MetadataExtension), 1, None),
        ctypes.addressof(metadata),
    )
    frame = (ctypes.c_size_t * 64)(frame_bytes, ctypes.addressof(extension))
    assert call(ctypes.addressof(frame)) is None
    return metadata.traits


@needs_cuda
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_only_the_cuda_handler_may_be_captured(tmp_path):
    command_buffer_compatible = 1
    registrations = _ext.registrations()
    frame_bytes = call_frame_bytes(tmp_path)
    cuda = traits(registrations["CUDA"]["coop_exchange"], frame_bytes)
    assert cuda == command_buffer_compatible
    assert traits(registrations["cpu"]["coop_exchange"], frame_bytes) == 0
