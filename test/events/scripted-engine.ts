import { seededRandom, systemClock } from "../../src/core/index.ts";
import {
  type EngineEvent,
  EngineIngest,
  type EngineIngestOptions,
  encodeEngineBatch,
  type IngestChange,
} from "../../src/events/index.ts";
import {
  bindPublisher,
  bindRouter,
  type ZmtpMessage,
  type ZmtpReply,
} from "../../src/events/zmtp/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { localHashes, sequenceHashes } from "./literal-hashes.ts";

const basics = { clock: systemClock, random: seededRandom(3) };
const ANY_PORT = "tcp://127.0.0.1:*";
const LAST = 0xffff_ffff_ffff_ffffn;

export function number(value: bigint): Uint8Array {
  const frame = new Uint8Array(8);
  new DataView(frame.buffer).setBigUint64(0, value);
  return frame;
}

export const tokensOf = (block: number) =>
  Uint32Array.from({ length: 4 }, (_, at) => block * 10 + at);

/** An engine that publishes blocks, one per batch, and replays its buffer. */
export async function engine(
  { publish = ANY_PORT, replay = ANY_PORT } = {},
  buffer = 100,
  isNewForm = true,
) {
  const publisher = await bindPublisher({ ...basics, endpoint: publish });
  let first = 0;
  let batches: Uint8Array[] = [];
  let asked = 0;
  const answer = (message: ZmtpMessage, reply: ZmtpReply) => {
    asked++;
    const from = Number(new DataView(message[1]!.buffer, message[1]!.byteOffset).getBigUint64(0));
    const topic = isNewForm ? [new Uint8Array()] : [];
    for (const [at, payload] of batches.entries()) {
      if (at >= first && at >= from)
        reply([new Uint8Array(), ...topic, number(BigInt(at)), payload]);
    }
    reply([new Uint8Array(), ...topic, number(LAST), new Uint8Array()]);
  };
  const router = await bindRouter({ ...basics, endpoint: replay, onMessage: answer });
  const batch = (event: EngineEvent): Uint8Array => {
    const payload = encodeEngineBatch({ seconds: batches.length, rank: 0, events: [event] });
    batches.push(payload);
    first = Math.max(first, batches.length - buffer);
    return payload;
  };
  const add = (kind: "stored" | "removed", block: number, parent: number | null): Uint8Array => {
    const hashes = [BigInt(1_000 + block)];
    const common = { medium: "GPU", group: null, locality: null, ownership: null };
    const stored = {
      ...{ kind: "stored" as const, hashes, tokens: tokensOf(block), blockTokens: 4 },
      ...{ parent: parent === null ? null : BigInt(1_000 + parent), loraName: null, loraId: null },
      ...{ extras: null, cacheSalt: null, sessionId: null, eagleNext: null, ...common },
    };
    const event = kind === "stored" ? stored : { kind: "removed" as const, hashes, ...common };
    return batch(event);
  };
  return {
    ...{ publisher, router, add, batch },
    get asked() {
      return asked;
    },
    send: (payload: Uint8Array) =>
      publisher.publish([new Uint8Array(), number(BigInt(batches.indexOf(payload))), payload]),
    /** Published live only, under another number: the buffer does not have it. */
    sendAs: (sequence: number, payload: Uint8Array) =>
      publisher.publish([new Uint8Array(), number(BigInt(sequence)), payload]),
    restart: () => {
      [first, batches] = [0, []];
    },
    async [Symbol.asyncDispose]() {
      await publisher[Symbol.asyncDispose]();
      await router[Symbol.asyncDispose]();
    },
  };
}

/** The result of the changes: sequence hashes on the device. */
export function follow(
  options: Pick<EngineIngestOptions, "endpoint" | "replayEndpoint"> & Partial<EngineIngestOptions>,
) {
  const held = new Set<bigint>();
  const state = {
    ...{ isKnown: false, isHeard: false, restarts: 0 },
    sizes: [] as number[],
    restored: null as boolean | null,
  };
  const apply = ({ change }: IngestChange) => {
    if (change.kind === "cleared") held.clear();
    else if (change.kind === "stored") for (const hash of change.hashes) held.add(hash);
    else for (const hash of change.hashes) held.delete(hash);
  };
  const feed = new EngineIngest(
    { native: loadNative(), ...basics, topic: "", rank: 0, blockTokens: 4, ...options },
    {
      changes: (changes) => changes.forEach(apply),
      known: (isKnown) => {
        state.isKnown = isKnown;
      },
      heard: (isHeard) => {
        state.isHeard = isHeard;
      },
      restarted: () => void state.restarts++,
      blockTokens: (size) => void state.sizes.push(size),
      restored: (isConfirmed) => {
        state.restored = isConfirmed;
      },
    },
  );
  return { feed, held, state };
}

/** Sequence hashes of consecutive blocks. */
export const chain = (...blocks: number[]) => {
  const tokens = Uint32Array.from(blocks.flatMap((block) => [...tokensOf(block)]));
  return new Set(sequenceHashes(localHashes(tokens, 4)));
};
