import { CLUSTER_NAME } from "../../core/index.ts";
import {
  booleanKind,
  durationKind,
  integerKind,
  pathKind,
  patternKind,
  sizeKind,
} from "../kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const DAY_MS = 86_400_000;

/** Heartbeats that may be missing. */
function beats(key: string, standard: number, doc: string) {
  const kind = integerKind({ min: 2, max: 10_000 });
  return withDefault({ key, kind, standard, reload: false, doc });
}

export const eventsSection = section("Where what workers hold is known from.", {
  cluster: withDefault({
    key: "cluster",
    kind: patternKind<string>({
      name: "cluster name",
      pattern: CLUSTER_NAME,
      words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
      example: "hearth",
    }),
    standard: "hearth",
    reload: false,
    doc: "The name that agents and routers of one cluster share; it is in the subjects they use.",
  }),
  indexBytes: withDefault({
    key: "index_bytes",
    kind: sizeKind({ min: 2 ** 20, max: 2 ** 40, example: "4GiB" }),
    standard: "1GiB",
    reload: false,
    doc:
      "Memory of the picture of who holds what. Beyond it, what nobody asked for the longest is " +
      "forgotten, and answers say up to where they are exact.",
  }),
  workersMax: withDefault({
    key: "workers_max",
    kind: integerKind({ min: 1, max: 65_535 }),
    standard: 4_096,
    reload: false,
    doc: "Workers, each data parallel rank for itself, that are known at a time.",
  }),
  staleBeats: beats(
    "stale_beats",
    3,
    "A worker whose heartbeats are missing so often is chosen only where nothing else is left. " +
      "It says itself how far apart they are.",
  ),
  goneBeats: beats("gone_beats", 15, "After so many it is forgotten with all it held."),
  completeWithinMs: withDefault({
    key: "complete_within",
    kind: durationKind({ min: 50, max: DAY_MS, example: "10s" }),
    standard: "10s",
    reload: false,
    doc:
      "`/readyz` says yes once all workers that are heard of have told what they hold, and after " +
      "so long in any case.",
  }),
  stream: withDefault({
    key: "stream",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc:
      "Whether events are also read from the JetStream stream that agents with " +
      '`events.mode = "stream"` fill, under the name of `router.id`, so that nothing is missed ' +
      "while this router is down.",
  }),
  stateDir: optional({
    key: "state_dir",
    kind: pathKind({ bytesMax: 4_000, example: "/var/lib/hearth/router" }),
    reload: false,
    doc:
      "A folder of this router alone in which the picture is kept over a restart. Unset: it is " +
      "asked for from replicas and workers again.",
    example: "/var/lib/hearth/router",
  }),
  stateEveryMs: withDefault({
    key: "state_every",
    kind: durationKind({ min: 100, max: DAY_MS, example: "30s" }),
    standard: "30s",
    reload: false,
    doc: "How often it is written there, and once more at the end.",
  }),
});
