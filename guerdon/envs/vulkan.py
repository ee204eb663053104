"""Which device Vulkan draws with, and SwiftShader where there is none but the CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.extras import require

_SWIFTSHADER = "vk_swiftshader_icd.json"
_PLACES = (
    "/usr/lib/chromium",  # Debian
    "/usr/lib/chromium-browser",
    "/usr/lib64/chromium-browser",
    "/opt/google/chrome",
)
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_DRIVERS = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")


def render_device() -> str:
    """The name by which SAPIEN knows a device that it can draw with.

    Where Vulkan has no device but the CPU and no environment variable names a driver, that of
    SwiftShader is named, if it is there: SAPIEN does not work with Mesa's of Debian 12.
    """
    sapien = require("sapien", "maniskill")  # first: it may name a driver of NVIDIA's
    found = _kinds()
    if all(kind == _CPU for kind in found) and not _named() and (driver := _swiftshader()):
        os.environ[_DRIVERS[0]] = str(driver)
        found = _kinds()
    if found or sys.platform != "linux":  # SAPIEN remembers that it found nothing
        for name in ("cuda", *(f"pci:{address}" for address in _addresses())):
            try:
                if sapien.Device(name).can_render():
                    return name
            except RuntimeError:
                continue
    raise UnusableEnvironmentError(
        "there is no Vulkan device, which ManiSkill needs even where only states are observed: "
        "install a driver of your GPU that has Vulkan, or Debian's chromium-common for its "
        "SwiftShader, which draws on the CPU (VK_ICD_FILENAMES names a driver that lies elsewhere)"
    )


def _named() -> bool:
    """Whether somebody named drivers; SAPIEN's own attempt does not count."""
    named = [os.environ[name] for name in _DRIVERS if os.environ.get(name)]
    return any("sapien/vulkan_library" not in each for each in named)


def _swiftshader() -> Path | None:
    """The file that tells Vulkan of SwiftShader, which comes with Chromium."""
    files = (Path(place) / _SWIFTSHADER for place in _PLACES)
    return next((file for file in files if file.is_file()), None)


def _addresses() -> list[str]:
    """PCI addresses that a device may have; those of software are zero."""
    folders = sorted(Path("/sys/bus/pci/devices").glob("*"))
    displays = [each.name for each in folders if (each / "class").read_text().startswith("0x03")]
    return [*displays, "0000:00:00.0"]


def _kinds() -> list[int]:
    """The kinds of all devices that Vulkan has, asked of its loader.

    SAPIEN cannot be asked: it looks only once, and then no driver can be named any more.
    """
    try:
        vulkan = ctypes.CDLL(os.environ.get("SAPIEN_VULKAN_LIBRARY_PATH", "libvulkan.so.1"))
    except OSError:
        return []
    wanted = (ctypes.c_uint64 * 8)(1)  # a VkInstanceCreateInfo that asks for nothing special
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(wanted, None, ctypes.byref(instance)) != 0:
        return []
    try:
        count = ctypes.c_uint32()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        devices = (ctypes.c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
        return [_kind(vulkan, device) for device in devices[: count.value]]
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _kind(vulkan: ctypes.CDLL, device: int | None) -> int:
    properties = (ctypes.c_uint32 * 512)()  # room for more than a VkPhysicalDeviceProperties
    vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
    return properties[4]
