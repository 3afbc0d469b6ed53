import { booleanKind, choiceKind, pathKind } from "../kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const enabled = withDefault({
  key: "enabled",
  kind: choiceKind(["auto", "off", "require"]),
  standard: "auto",
  reload: false,
  doc:
    "Whether engines may have their GPU memory copied by the agent. `auto` opens the driver " +
    "where there is one and says in a line why not, `require` refuses the start without a usable " +
    "GPU, `off` opens nothing: a GPU that is opened holds a context of the agent in its memory.",
});

const library = optional({
  key: "library",
  kind: pathKind({ bytesMax: 4095, example: "/usr/lib64/libcuda.so.1" }),
  reload: false,
  doc:
    "The driver's user library, where the dynamic linker does not find `libcuda.so.1` by itself. " +
    "Never the CUDA runtime (`libcudart`).",
  example: "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
});

const register = withDefault({
  key: "register",
  kind: booleanKind,
  standard: true,
  reload: false,
  doc:
    "Whether RAM is registered with the driver, so that copies run beside everything else and at " +
    "the speed of the link. The driver locks it into memory. Off: copies work, and are slower.",
});

export const gpuSection = section("Copies between GPUs and RAM for engines of this host.", {
  enabled,
  library,
  register,
});
