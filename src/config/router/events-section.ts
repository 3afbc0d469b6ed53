import { durationKind, integerKind, pathKind, sizeKind } from "../kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const DAY_MS = 86_400_000;

function duration(key: string, standard: string, doc: string) {
  const kind = durationKind({ min: 50, max: DAY_MS, example: standard });
  return withDefault({ key, kind, standard, reload: false, doc });
}

export const eventsSection = section("Where what workers hold is known from.", {
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
  staleAfterMs: duration(
    "stale_after",
    "15s",
    "A worker of which nothing was heard for so long is chosen only where nothing else is left.",
  ),
  goneAfterMs: duration("gone_after", "60s", "After so long it is forgotten with all it held."),
  completeWithinMs: duration(
    "complete_within",
    "10s",
    "`/readyz` says yes once all workers that are heard of have told what they hold, and after " +
      "so long in any case.",
  ),
  stateFile: optional({
    key: "state_file",
    kind: pathKind({ bytesMax: 4_000, example: "/var/lib/hearth/router.index" }),
    reload: false,
    doc:
      "Where the picture is kept over a restart of this router, and read at its start. Unset: it " +
      "is asked for from the workers again.",
    example: "/var/lib/hearth/router.index",
  }),
});
