#!/usr/bin/env python3
"""Compiles a compute kernel in SPIR-V by the Vulkan driver: vulkan_pipeline.py FILE ENTRY BINDINGS.

With VK_DRIVER_FILES naming Mesa's RADV, RADV_FORCE_FAMILY=navi31 and RADV_DEBUG=shaderstats no card is needed, and the driver
prints the registers, shared memory and resident waves of the kernel on stderr. A program that also runs its kernels
loses such a device; this one runs nothing.
"""

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p, cast, pointer, sizeof


def structure(name, *fields):
    """A structure of Vulkan's, from the names and types of its fields."""
    return type(name, (Structure,), {"_fields_": list(fields)})


HEAD = (("kind", c_int), ("next", c_void_p), ("flags", c_uint32))
Application = structure("Application", ("kind", c_int), ("next", c_void_p), ("name", c_char_p), ("version", c_uint32), ("engine", c_char_p), ("engine_version", c_uint32), ("api", c_uint32))
Instance = structure("Instance", *HEAD, ("application", POINTER(Application)), ("num_layers", c_uint32), ("layers", c_void_p), ("num_extensions", c_uint32), ("extensions", c_void_p))
Queue = structure("Queue", *HEAD, ("family", c_uint32), ("count", c_uint32), ("priorities", POINTER(ctypes.c_float)))
Device = structure("Device", *HEAD, ("num_queues", c_uint32), ("queues", POINTER(Queue)), ("num_layers", c_uint32), ("layers", c_void_p), ("num_extensions", c_uint32), ("extensions", c_void_p), ("features", c_void_p))
Module = structure("Module", *HEAD, ("size", c_size_t), ("code", c_char_p))
Binding = structure("Binding", ("number", c_uint32), ("kind", c_int), ("count", c_uint32), ("stages", c_uint32), ("samplers", c_void_p))
SetLayout = structure("SetLayout", *HEAD, ("count", c_uint32), ("bindings", POINTER(Binding)))
Layout = structure("Layout", *HEAD, ("num_sets", c_uint32), ("sets", POINTER(c_uint64)), ("num_ranges", c_uint32), ("ranges", c_void_p))
Stage = structure("Stage", *HEAD, ("stage", c_uint32), ("module", c_uint64), ("entry", c_char_p), ("constants", c_void_p))
Pipeline = structure("Pipeline", *HEAD, ("stage", Stage), ("layout", c_uint64), ("base", c_uint64), ("base_index", ctypes.c_int32))
# Values of VkStructureType, VkDescriptorType and VkShaderStageFlagBits.
APPLICATION, INSTANCE, QUEUE, DEVICE, MODULE, STAGE, PIPELINE, LAYOUT, SET_LAYOUT = 0, 1, 2, 3, 16, 18, 29, 30, 32
UNIFORM_BUFFER, STORAGE_BUFFER, COMPUTE = 6, 7, 0x20


def main(path, entry, bindings):
    """Compiles the kernel. `bindings` has a letter for each buffer in order: `s` for storage, `u` for uniform."""
    vulkan = ctypes.CDLL("libvulkan.so.1")

    def make(function, owner, info, kind):
        made = kind()
        failed = getattr(vulkan, function)(*owner, byref(info), None, byref(made))
        if failed:
            sys.exit(f"{function} failed with {failed}")
        return made

    application = Application(kind=APPLICATION, api=(1 << 22) | (3 << 12))
    instance = make("vkCreateInstance", (), Instance(kind=INSTANCE, application=pointer(application)), c_void_p)
    count, card = c_uint32(1), c_void_p()
    vulkan.vkEnumeratePhysicalDevices(instance, byref(count), byref(card))
    if count.value == 0:
        sys.exit("the driver offers no device")
    queue = Queue(kind=QUEUE, count=1, priorities=pointer(ctypes.c_float(1)))
    device = make("vkCreateDevice", (card,), Device(kind=DEVICE, num_queues=1, queues=pointer(queue)), c_void_p)
    with open(path, "rb") as file:
        code = file.read()
    module = make("vkCreateShaderModule", (device,), Module(kind=MODULE, size=len(code), code=code), c_uint64)
    kinds = {"s": STORAGE_BUFFER, "u": UNIFORM_BUFFER}
    buffers = (Binding * len(bindings))(*(Binding(at, kinds[letter], 1, COMPUTE) for at, letter in enumerate(bindings)))
    set_info = SetLayout(kind=SET_LAYOUT, count=len(bindings), bindings=cast(buffers, POINTER(Binding)))
    set_layout = make("vkCreateDescriptorSetLayout", (device,), set_info, c_uint64)
    layout = make("vkCreatePipelineLayout", (device,), Layout(kind=LAYOUT, num_sets=1, sets=pointer(set_layout)), c_uint64)
    stage = Stage(kind=STAGE, stage=COMPUTE, module=module, entry=entry.encode())
    info, pipeline = Pipeline(kind=PIPELINE, stage=stage, layout=layout), c_uint64()
    failed = vulkan.vkCreateComputePipelines(device, c_uint64(0), 1, byref(info), None, byref(pipeline))
    if failed:
        sys.exit(f"vkCreateComputePipelines failed with {failed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
