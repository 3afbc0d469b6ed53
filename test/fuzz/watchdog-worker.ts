import { writeSync } from "node:fs";
import { replayCommand, saveInput } from "./findings.ts";
import { STUCK, WATCH, type WatchOrder } from "./watchdog.ts";

declare const self: Worker;

/** Looks whether the same input is still being worked on. */
function watch({ shared, stuckMs }: WatchOrder): void {
  const words = new Int32Array(shared, 0, WATCH.words);
  let seen = -1;
  let since = performance.now();
  setInterval(() => {
    const begun = Atomics.load(words, WATCH.begun);
    const isBusy = Atomics.load(words, WATCH.ended) !== begun;
    if (!isBusy || begun !== seen) {
      seen = begun;
      since = performance.now();
    } else if (performance.now() - since > stuckMs) giveUp(shared, words);
  }, stuckMs / 10);
}

function giveUp(shared: SharedArrayBuffer, words: Int32Array): void {
  const copy = (at: number, length: number) => new Uint8Array(shared, at, length).slice();
  const target = new TextDecoder().decode(copy(WATCH.targetAt, words[WATCH.targetBytes]!));
  const file = saveInput(target, STUCK, copy(WATCH.inputAt, words[WATCH.inputBytes]!));
  writeSync(2, `${target}: hang without end; again with ${replayCommand(file)}\n`);
  writeSync(1, `${JSON.stringify({ crashes: 0, hangs: 1, stuck: file })}\n`);
  process.kill(process.pid, "SIGKILL");
}

self.onmessage = ({ data }: MessageEvent<WatchOrder>) => watch(data);
