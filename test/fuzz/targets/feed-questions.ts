import { type Random, randomBelow, type WorkerId } from "../../../src/core/index.ts";
import {
  decodeAnswer,
  decodeStoredSnapshot,
  encodeQuery,
  encodeStoredSnapshot,
} from "../../../src/events/index.ts";
import {
  EngineBlockSet,
  QueryHandler,
  ResidencyLog,
  Snapshots,
} from "../../../src/events/publishing/index.ts";
import { ManualClock } from "../../support/index.ts";
import { must, type Target } from "../target.ts";

const SOURCE = { worker: "w" as WorkerId, rank: 0, incarnation: 5n };
const ANSWER_BYTES_MAX = 4_096;
const CHANGES = 200;

function desk() {
  const held = new EngineBlockSet(10_000);
  const residency = new ResidencyLog({
    source: SOURCE,
    ring: { changesMax: 100, blocksMax: 10_000 },
    ...{ mode: "ring", everyMs: 1_000, held: [held], spaces: () => [], flush: () => undefined },
  });
  for (let i = 1; i <= CHANGES; i++) {
    const hashes = BigUint64Array.from({ length: 9 }, (_, at) => BigInt(10 * i + at));
    const change = { parent: null, hashes, tokenHashes: null } as const;
    residency.push(held.apply([{ kind: "stored", tier: "host", ...change }]));
  }
  const clock = new ManualClock();
  const snapshots = new Snapshots({ residency, clock, partBytesMax: () => ANSWER_BYTES_MAX });
  const answerBytesMax = () => ANSWER_BYTES_MAX;
  return { clock, desk: new QueryHandler({ residency, snapshots, clock, answerBytesMax }) };
}

/** Well formed, and about anything. */
function generate(random: Random): Uint8Array {
  const incarnation = [null, 5n, 6n][randomBelow(random, 3)]!;
  const number = () => randomBelow(random, 2) * random.u32() + randomBelow(random, CHANGES + 5);
  if (randomBelow(random, 2) === 0) {
    const to = randomBelow(random, 2) === 0 ? null : number();
    return encodeQuery({ kind: "range", incarnation, from: number(), to });
  }
  const snapshot = randomBelow(random, 2) === 0 ? null : BigInt(randomBelow(random, 4));
  const part = randomBelow(random, 2) * randomBelow(random, 9);
  return encodeQuery({ kind: "snapshot", incarnation, snapshot, part });
}

/** What anybody may ask a rank: each question gets one answer, which is one, and no long one. */
export function feedQuestions(): Target {
  const { clock, desk: asked } = desk();
  return {
    name: "feed-questions",
    corpus: [
      encodeQuery({ kind: "range", incarnation: 5n, from: 150, to: 160 }),
      encodeQuery({ kind: "range", incarnation: null, from: 1, to: null }),
      encodeQuery({ kind: "snapshot", incarnation: null, snapshot: null, part: 0 }),
      encodeQuery({ kind: "snapshot", incarnation: 5n, snapshot: 1n, part: 1 }),
    ],
    inputBytesMax: 2_048,
    generate,
    async run(input, saw) {
      clock.advance(1);
      const bytes = await asked.answer(input);
      must(bytes.length <= ANSWER_BYTES_MAX + 512, "an answer of the length that was allowed");
      const read = decodeAnswer(bytes);
      must(read.ok, "an answer that can be read");
      saw(read.value.kind);
      if (read.value.kind !== "snapshot") return;
      const whole = { ...read.value, part: 0, isLast: true };
      const stored = decodeStoredSnapshot(await encodeStoredSnapshot([whole]));
      must(stored.ok, "a stored snapshot that can be read");
      const damaged = decodeStoredSnapshot(input);
      saw(damaged.ok ? "stored" : "not stored");
    },
  };
}
