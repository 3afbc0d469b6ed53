import { WORKER_ID, type WorkerId } from "../../core/index.ts";
import { booleanKind, choiceKind, pathKind, patternKind } from "../kinds.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const ID_CHARACTERS_MAX = 64;

export const workerIdKind = patternKind<WorkerId>({
  name: "worker id",
  pattern: WORKER_ID,
  words: "1 to 64 letters, digits, - and _, the first a letter or digit",
  example: "gpu-node-01",
});

/** `gpu-01.example.org` → `gpu-01-example-org`; null where nothing usable is left. */
export function workerIdOfHostname(hostname: string | null): WorkerId | null {
  const id = (hostname ?? "")
    .replace(/[^A-Za-z0-9_-]+/g, "-")
    .replace(/^[-_]+/, "")
    .slice(0, ID_CHARACTERS_MAX);
  const read = workerIdKind.read(id);
  return read.ok ? read.value : null;
}

const id: KeySpec<WorkerId> = {
  key: "id",
  kind: workerIdKind,
  standard: {
    is: "derived",
    words: "the host name, with every other character replaced by -",
    needs: [],
    from: ({ facts }) => workerIdOfHostname(facts.hostname) ?? undefined,
  },
  reload: false,
  doc:
    "The name of this worker in logs, metrics, events and commands. It must be unique in the " +
    "fleet and stay the same across restarts. Set it where host names are not unique or change.",
  example: "gpu-node-01",
};

export const nodeSection = section("Who this worker is.", { id });

const level = withDefault({
  key: "level",
  kind: choiceKind(["error", "warn", "info", "debug"]),
  standard: "info",
  reload: true,
  doc: "The least important line that is still written.",
});

const format = withDefault({
  key: "format",
  kind: choiceKind(["text", "json"]),
  standard: "text",
  reload: false,
  doc: "How a line looks: `text` for people, `json` (one object a line) for collectors.",
});

export const logSection = section("What is written to standard error.", { level, format });

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
