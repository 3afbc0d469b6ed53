import { expect, test } from "bun:test";
import { seededRandom, systemClock } from "../../src/core/index.ts";
import { EngineIngest, encodeEngineBatch } from "../../src/events/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describePyzmq, PyzmqProcess, waitFor } from "../support/index.ts";

const BLOCKS = 400;
const tokensOf = (block: number) => Uint32Array.from({ length: 4 }, (_, at) => block * 7 + at);

/**
 * Works like vLLM's publisher: a PUB with topic, number and payload, and a ROUTER with the kept
 * batches. Each input line is one payload in hex; a leading `-` keeps it without publishing it.
 */
const ENGINE = `
import threading
p = c.socket(zmq.PUB)
p.bind("tcp://127.0.0.1:*")
r = c.socket(zmq.ROUTER)
r.bind("tcp://127.0.0.1:*")
print(p.getsockopt_string(zmq.LAST_ENDPOINT))
print(r.getsockopt_string(zmq.LAST_ENDPOINT))
kept = []
def replay():
  while True:
    who, empty, start = r.recv_multipart()
    for seq in range(int.from_bytes(start, "big"), len(kept)):
      r.send_multipart([who, b"", b"", seq.to_bytes(8, "big"), kept[seq]])
    r.send_multipart([who, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])
threading.Thread(target=replay, daemon=True).start()
for line in sys.stdin:
  payload = bytes.fromhex(line.strip().lstrip("-"))
  seq = len(kept)
  kept.append(payload)
  if len(kept) == 50:
    print("kept 50")
  if line[0] != "-":
    p.send_multipart([b"kv", seq.to_bytes(8, "big"), payload])
`;

import { localHashes, sequenceHashes } from "./literal-hashes.ts";

/** Consecutive blocks, as an engine stores a long prompt. */
function payloadOf(block: number): string {
  const event = {
    ...{ kind: "stored" as const, hashes: [BigInt(block + 1)], tokens: tokensOf(block) },
    ...{ parent: block === 0 ? null : BigInt(block), blockTokens: 4, medium: "GPU" },
    ...{ loraName: null, loraId: null, extras: null, group: null, cacheSalt: null },
    ...{ locality: null, ownership: null, sessionId: null, eagleNext: null },
  };
  return Buffer.from(encodeEngineBatch({ seconds: 1, rank: 0, events: [event] })).toString("hex");
}

describePyzmq("an engine that publishes with libzmq", () => {
  test("is followed from its first batch, across lost ones", async () => {
    await using child = new PyzmqProcess(ENGINE);
    await waitFor(() => child.lines.length === 2, 20_000, "its endpoints");
    for (let block = 0; block < 50; block++) child.write(`-${payloadOf(block)}`);
    // Silent batches: the feed must not ask for them before the engine has all of them.
    await waitFor(() => child.lines.length === 3, 20_000, "batches that can be replayed");
    const [endpoint, replayEndpoint] = child.lines as unknown as [string, string];
    const held = new Set<bigint>();
    let isKnown = false;
    const where = { endpoint, replayEndpoint, topic: "kv", rank: 0, blockTokens: 4 };
    const basics = { native: loadNative(), clock: systemClock, random: seededRandom(5) };
    await using feed = new EngineIngest(
      { ...basics, ...where },
      {
        changes: (changes) => {
          for (const { change } of changes) {
            if (change.kind === "cleared") held.clear();
            else for (const hash of change.hashes) held.add(hash);
          }
        },
        known: (is) => {
          isKnown = is;
        },
        heard: () => undefined,
      },
    );
    await waitFor(() => isKnown && held.size === 50, 20_000, "what it had");
    for (let block = 50; block < BLOCKS; block++) {
      child.write(`${block % 9 === 0 ? "-" : ""}${payloadOf(block)}`);
    }
    await waitFor(() => isKnown && held.size === BLOCKS, 20_000, "all blocks");
    const tokens = Uint32Array.from(
      Array.from({ length: BLOCKS }, (_, block) => [...tokensOf(block)]).flat(),
    );
    expect([...held].sort()).toEqual([...sequenceHashes(localHashes(tokens, 4))].sort());
    expect(feed.counts.gaps).toBeGreaterThan(0);
    expect(feed.counts).toMatchObject({ lostBatches: 0, restarts: 0 });
  });
});
