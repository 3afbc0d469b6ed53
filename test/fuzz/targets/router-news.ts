import { type Random, randomBelow, seededRandom, type WorkerId } from "../../../src/core/index.ts";
import {
  encodeBatch,
  encodeHeartbeat,
  eventsSubject,
  RESIDENCY_LIMITS,
} from "../../../src/events/index.ts";
import {
  encodeState,
  LOCATE_KEYS_MAX,
  readQuestion,
  readState,
  WorkerTable,
} from "../../../src/router/index.ts";
import {
  INGEST_DEFAULTS,
  ResidencyIngest,
  takeResidency,
} from "../../../src/router/ingest/index.ts";
import {
  encodeAnnouncement,
  encodeLoadEvents,
  encodeOutput,
  isRouterId,
  type RouterId,
  readAnnouncement,
  readLoadEvents,
  readOutput,
} from "../../../src/router/replicas/index.ts";
import { LiteralWorker } from "../../router/ingest/literal-worker.ts";
import { ReferenceIndex } from "../../router/prefix-index/reference-index.ts";
import { ManualClock } from "../../support/index.ts";
import { must, type Target } from "../target.ts";

const SELF = "7" as RouterId;
const WORKER = "w" as WorkerId;
const DIGESTS = [0, 1, 2].map((blocks) => ({ blocks, mix: BigInt(blocks) << 60n }));
const CONTEXT = { nameOf: () => WORKER, blockTokens: 16 };

function announcement(kind: "here" | "bye" = "here"): Uint8Array {
  const source = { worker: WORKER, rank: 0, incarnation: 5n };
  const thresholds = {
    ...{ activeDecodeBlocksThreshold: 0.5, activePrefillTokensThreshold: null },
    activePrefillTokensThresholdFrac: 1.5,
  };
  const said = {
    ...{ kind, router: SELF, everyMs: 1_000, requests: { requests: 2, mix: 1n << 63n } },
    snapshots: [{ source, sequence: 9, digests: DIGESTS }],
    thresholds: [{ model: "m", thresholds, wallMs: 1_700_000_000_000, router: SELF }],
  };
  return encodeAnnouncement(said, "c");
}

function news(): Uint8Array[] {
  const of = { id: "r", worker: WORKER, rank: 0 };
  const hashes = BigUint64Array.of(1n, 1n << 63n);
  const counts = { promptTokens: 32, prefillTokens: 7, expectedOutputTokens: 3, outputTokens: 16 };
  const request = { ...of, hashes, ...counts, isPrefilling: true };
  const add = { kind: "add", request } as const;
  const free = { kind: "free", ...of } as const;
  return [encodeLoadEvents(SELF, 1, [add]), encodeLoadEvents(SELF, 2, [add, free])];
}

const question = Buffer.from(
  JSON.stringify({
    ...{ version: 1, cluster: "c", worker_id: "w", namespace: "ab".repeat(32) },
    keys: ["cd".repeat(32)],
  }),
);

function saved(): Uint8Array {
  const source = { worker: WORKER, rank: 0, incarnation: 5n };
  const spec = {
    ...{ worker: WORKER, rank: 0, model: "m", role: "both" as const, spaces: [] },
    ...{ url: null, totalBlocks: null, batchTokensMax: 8 },
  };
  const sources = [
    { source, target: 0 as never, sequence: 4, isDeviceKnown: false, spaces: [], spec },
  ];
  const state = { indexFile: "index-1", wallMs: 1, targetsEnd: 1, sources };
  return Buffer.from(encodeState(state));
}

/** A digit or two are others: most of it can still be read. */
function edited(input: Uint8Array, random: Random): Uint8Array {
  const bytes = Uint8Array.from(input);
  for (let count = 1 + randomBelow(random, 2); count > 0; count--) {
    bytes[randomBelow(random, bytes.length)] = 0x30 + randomBelow(random, 10);
  }
  return bytes;
}

/** What routers tell each other, what hosts ask them, and what they saved. */
export function routerNews(): Target {
  const corpus = [announcement(), announcement("bye"), ...news(), question, saved()];
  corpus.push(encodeOutput(SELF, [["r", 16]]));
  return {
    name: "router-news",
    corpus,
    generate: (random) => edited(corpus[randomBelow(random, corpus.length)]!, random),
    run(input, saw) {
      const said = readAnnouncement(input, "c");
      if (said !== null) {
        saw(`announcement ${said.kind} ${said.snapshots.length}`);
        const again = readAnnouncement(encodeAnnouncement(said, "c"), "c");
        must(Bun.deepEquals(again, said), "it reads back");
      }
      const load = readLoadEvents(input, CONTEXT);
      if (load !== null) {
        saw(`news ${load.news.map(({ kind }) => kind).join(" ")}`);
        must(isRouterId(load.router), "a router has a number");
      }
      const asked = readQuestion(input);
      if (asked !== null) saw("question");
      must((asked?.hashes.length ?? 0) <= LOCATE_KEYS_MAX, "keys are bounded");
      if (readOutput(input) !== null) saw("output");
      const state = readState(Buffer.from(input).toString());
      if (state !== null) saw("state");
    },
  };
}

const CLUSTER = "c";
const SUBJECT = eventsSubject(CLUSTER, { worker: WORKER, rank: 0 });
const SOURCES_MAX = 4;

/** Messages of a publisher, as an intake takes them one behind the other. */
export function residencyMessages(): Target {
  const clock = new ManualClock();
  const [index, table] = [new ReferenceIndex(), new WorkerTable()];
  const pending = { hashesMax: 2_000, batchesPerSourceMax: 50 };
  const failed = async () => ({ kind: "failed" as const, why: "nobody is asked" });
  const intake = new ResidencyIngest({
    ...{ clock, index, table, random: seededRandom(1), log: () => undefined },
    archive: { range: failed, snapshot: failed },
    settings: { ...INGEST_DEFAULTS, targetsMax: SOURCES_MAX, pending },
    isHearing: () => true,
  });
  const worker = new LiteralWorker(WORKER);
  const hello = encodeHeartbeat(worker.heartbeat(), 0);
  takeResidency({ subject: SUBJECT, data: hello }, intake);
  for (const hash of [1, 2, 3]) worker.change({ kind: "store", tier: "host", hash });
  const batches = worker.wire.map((batch) => encodeBatch(batch, 0));
  const generate = (random: Random) => {
    const first = 1 + randomBelow(random, 6);
    const source = { ...worker.source, incarnation: BigInt(1 + randomBelow(random, 2)) };
    return encodeBatch({ ...worker.wire[0]!, source, firstSequence: first }, 0);
  };
  return {
    name: "residency",
    corpus: [hello, encodeHeartbeat(worker.heartbeat(), 0), ...batches],
    generate,
    run(input, saw) {
      const before = intake.counts.batches;
      const isTaken = takeResidency({ subject: SUBJECT, data: input }, intake);
      saw(`${isTaken} ${intake.counts.batches > before}`);
      must(!isTaken || input.length <= RESIDENCY_LIMITS.messageBytesMax, "a message is bounded");
      const { sources, pendingHashes } = intake.stats();
      must(sources <= SOURCES_MAX, "sources are bounded");
      must(pendingHashes <= pending.hashesMax + 2 ** 20, "what waits is bounded");
    },
    settle() {
      clock.advance(1_000);
    },
    close: async () => {
      await intake[Symbol.asyncDispose]();
    },
  };
}
