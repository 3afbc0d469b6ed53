import { WORKER_ID, type WorkerId } from "../../core/index.ts";
import { patternKind } from "../kinds.ts";
import { type KeySpec, section } from "../spec.ts";

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
