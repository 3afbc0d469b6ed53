import {
  decodeEngineBatch,
  decodeSavedIngest,
  type EngineEvent,
  encodeEngineBatch,
  type IngestChange,
  noCounts,
  type SavedIngest,
  savedIngestPages,
  Translator,
} from "../../../src/events/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { exampleBatches } from "../../events/examples.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";

const BLOCK = 4;
const KNOWN_MAX = 40;

/** What is read is written so that it is read again. */
function checkAgain(seconds: number, rank: number, events: readonly EngineEvent[]): void {
  const readable = events.filter(({ kind }) => kind !== "unreadable");
  const again = decodeEngineBatch(encodeEngineBatch({ seconds, rank, events: readable }));
  must(again.ok, "what was read can be written");
  must(Bun.deepEquals(again.value.events, readable), "and is the same then");
}

function checkChange({ change, tokens }: IngestChange): void {
  if (change.kind === "cleared") return;
  must(change.hashes.length > 0, "a change is of something");
  if (change.kind === "removed") return;
  const { hashes, tokenHashes } = change;
  must(tokenHashes === null || tokenHashes.length === hashes.length, "a token hash for each");
  must(tokens === null || tokens.length === hashes.length * BLOCK, "all tokens of each block");
}

/** A saved feed as one input: its pages, each behind its length in two bytes. */
function pagesIn(input: Uint8Array): Uint8Array[] {
  const pages: Uint8Array[] = [];
  for (let at = 0; at + 2 <= input.length; ) {
    const length = input[at]! * 256 + input[at + 1]!;
    pages.push(input.subarray(at + 2, at + 2 + length));
    at += 2 + length;
  }
  return pages;
}

const SAVED: SavedIngest = {
  ...{ next: 3, lastPayload: 9n, blockTokens: BLOCK, isSizeSure: true, isComplete: false },
  ...{ groups: [[0, true]], gone: [5n, 6n], hasForgottenGone: false },
  known: [
    [7n, { sequence: 1n, parent: null, before: null, salt: 0n, copies: [2, 0, 1], perhaps: 1 }],
  ],
  orphans: [
    {
      ...{ name: 8n, parent: 6n, tokens: Uint32Array.of(1, 2, 3, 4), extras: null },
      ...{ loraName: "a", salt: null, copies: [1, 0, 0] },
    },
  ],
};

/** Files that a router reads at its start: whatever is accepted can be taken over and saved. */
export function savedFeeds(): Target {
  const parts = [...savedIngestPages(SAVED)].map((page) => [
    page.length >> 8,
    page.length & 255,
    ...page,
  ]);
  const run = (input: Uint8Array, saw: Saw) => {
    const saved = decodeSavedIngest(pagesIn(input));
    saw(saved === null ? "refused" : "accepted");
    if (saved === null) return;
    const options = { native: loadNative(), blockTokens: null, knownBlocksMax: KNOWN_MAX };
    const translator = new Translator(options, noCounts());
    translator.restore(saved);
    for (const _step of translator.blocks.announceSteps());
    for (const { change } of translator.blocks.changes.take()) saw(change.kind);
    const { next, lastPayload } = saved;
    const state = { next, lastPayload, ...translator.state() };
    const again = decodeSavedIngest([...savedIngestPages(state)]);
    must(again?.next === next && again.lastPayload === lastPayload, "it can be saved again");
  };
  return { name: "saved-feeds", corpus: [Uint8Array.from(parts.flat())], run };
}

/** Batches of engines, read and translated one after the other by one rank's feed. */
export function engineBatches(): Target {
  const counts = noCounts();
  const options = { native: loadNative(), blockTokens: BLOCK, knownBlocksMax: KNOWN_MAX };
  const run = (input: Uint8Array, saw: Saw) => {
    const batch = decodeEngineBatch(input);
    if (!batch.ok) {
      saw(shapeOf(batch.why));
      return;
    }
    const { seconds, rank, events } = batch.value;
    checkAgain(seconds, rank, events);
    const translator = new Translator(options, counts);
    const size = translator.blockTokens;
    for (const change of [...translator.apply(events), ...translator.apply(events)]) {
      if (translator.blockTokens === size) checkChange(change);
      saw(`${change.change.kind} ${change.isPlain}`);
    }
    must(translator.blocks.known.size <= KNOWN_MAX, "what is known is bounded");
    must(translator.blocks.orphans.size <= KNOWN_MAX, "what waits for parents is bounded");
    saw(`size ${translator.isSizeSure} all ${translator.isComplete}`);
    for (const event of events) saw(event.kind === "unreadable" ? shapeOf(event.why) : event.kind);
    for (const [reason, count] of Object.entries(counts.dropped)) if (count > 0) saw(reason);
  };
  return { name: "engine-events", corpus: exampleBatches(), run };
}
