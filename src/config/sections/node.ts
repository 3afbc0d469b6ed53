import {
  CLUSTER_NAME,
  choiceKind,
  patternKind,
  WORKER_ID,
  type WorkerId,
} from "../../core/index.ts";
import { type KeySpec, optionalPath, section, withDefault } from "../spec.ts";

const ID_CHARACTERS_MAX = 64;

export const workerIdKind = patternKind<WorkerId>({
  name: "worker id",
  placeholder: "ID",
  pattern: WORKER_ID,
  words: "1 to 64 letters, digits, - and _, the first a letter or digit",
  example: "gpu-node-01",
});

export const clusterNameKind = patternKind<string>({
  name: "cluster name",
  pattern: CLUSTER_NAME,
  words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
  example: "hearth",
});

/** `gpu-01.example.org` → `gpu-01-example-org`; null if no valid character is left. */
function workerIdOfHostname(hostname: string | null): WorkerId | null {
  const id = (hostname ?? "")
    .replace(/[^A-Za-z0-9_-]+/g, "-")
    .replace(/^[-_]+/, "")
    .slice(0, ID_CHARACTERS_MAX);
  const read = workerIdKind.read(id);
  return read.ok ? read.value : null;
}

/** The id of a process in its fleet. */
export function idKey(doc: string, example: string): KeySpec<WorkerId> {
  return {
    key: "id",
    kind: workerIdKind,
    defaultValue: {
      is: "derived",
      words: "the host name, with every other character replaced by -",
      needs: [],
      from: ({ facts }) => workerIdOfHostname(facts.hostname) ?? undefined,
    },
    doc,
    example,
  };
}

export const nodeSection = section("Identity of this worker.", {
  id: idKey(
    "The id of this worker in logs, metrics, events and commands. It must be unique in the " +
      "fleet and stable across restarts. Set it if host names are not unique or change.",
    "gpu-node-01",
  ),
});

const level = withDefault({
  key: "level",
  kind: choiceKind(["error", "warn", "info", "debug"]),
  defaultValue: "info",
  reload: true,
  doc: "The lowest level of log lines that is written.",
});

const format = withDefault({
  key: "format",
  kind: choiceKind(["text", "json"]),
  defaultValue: "text",
  doc: "Format of log lines: `text` for people, `json` (one object per line) for log collectors.",
});

export const logSection = section("Logging to standard error.", { level, format });

const library = optionalPath(
  "library",
  "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
  "Path of the driver's user library, if the dynamic linker does not find `libcuda.so.1`. " +
    "Never the CUDA runtime (`libcudart`).",
);

export const gpuSection = section("Copies between GPUs and RAM for engines on this host.", {
  enabled: withDefault({
    key: "enabled",
    kind: choiceKind(["auto", "off", "require"]),
    defaultValue: "auto",
    doc:
      "Whether the agent copies between RAM and the GPU memory of engines. `auto` opens the " +
      "driver if there is one and logs why not, `require` refuses to start without a usable GPU, " +
      "`off` opens nothing. An open GPU holds a context of the agent in its memory.",
  }),
  library,
});
