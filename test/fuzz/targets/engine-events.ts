import {
  decodeEngineBatch,
  type EngineEvent,
  encodeEngineBatch,
  type FeedChange,
  noCounts,
  Translator,
} from "../../../src/kvevents/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { exampleBatches } from "../../kvevents/examples.ts";
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

function checkChange({ change, tokens }: FeedChange): void {
  if (change.kind === "cleared") return;
  must(change.hashes.length > 0, "a change is of something");
  if (change.kind === "removed") return;
  const { hashes, tokenHashes } = change;
  must(tokenHashes === null || tokenHashes.length === hashes.length, "a token hash for each");
  must(tokens === null || tokens.length === hashes.length * BLOCK, "all tokens of each block");
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
    for (const change of [...translator.apply(events), ...translator.apply(events)]) {
      checkChange(change);
      saw(`${change.change.kind} ${change.isPlain}`);
    }
    must(translator.knownBlocks <= KNOWN_MAX, "what is known is bounded");
    for (const event of events) saw(event.kind === "unreadable" ? shapeOf(event.why) : event.kind);
    for (const [reason, count] of Object.entries(counts.dropped)) if (count > 0) saw(reason);
  };
  return { name: "engine-events", corpus: exampleBatches(), run };
}
