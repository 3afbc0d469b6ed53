import { type Clock, formatBytes } from "../core/index.ts";
import type { ReplayTally } from "../workload/replay/index.ts";
import type { Io } from "./io.ts";
import { bar, createLiveView } from "./live-view.ts";
import { createProgress } from "./progress.ts";

export interface ReplayViewOptions {
  readonly io: Io;
  readonly clock: Clock;
  readonly json: boolean;
  /** Requests of the whole trace, where that is known. */
  readonly requests: number | null;
  /** Bytes of blocks in the agent's RAM, and how many fit; null where the agent is not ours. */
  readonly ram: (() => { readonly used: number; readonly bytes: number }) | null;
}

/** Shows a replay while it runs: a live table on a terminal, a line now and then elsewhere. */
export interface ReplayView {
  update(tally: ReplayTally): void;
  end(): void;
}

const BAR = 30;

export function createReplayView(options: ReplayViewOptions): ReplayView {
  const { io, clock, json } = options;
  const startMs = clock.monotonicMs();
  if (!io.err.isTerminal) {
    const progress = createProgress({ io, clock, json });
    return {
      update: (tally) => progress.update(oneLine(tally)),
      end: () => progress.end(),
    };
  }
  const view = createLiveView(io.err, clock);
  return {
    update: (tally) => view.draw(() => lines(tally, options, clock.monotonicMs() - startMs)),
    end: () => view.clear(),
  };
}

function oneLine(tally: ReplayTally): string {
  const ratio = tally.blocksAsked === 0 ? 0 : tally.blocksHit / tally.blocksAsked;
  const hit = `${(ratio * 100).toFixed(1)} % of blocks hit`;
  return `${tally.requests} requests, ${tally.blocksAsked} blocks asked, ${hit}`;
}

function lines(tally: ReplayTally, options: ReplayViewOptions, ms: number): string[] {
  const { requests, ram } = options;
  const ratio = tally.blocksAsked === 0 ? 0 : tally.blocksHit / tally.blocksAsked;
  const rate = (bytes: number, ns: number) => (ns === 0 ? "-" : `${(bytes / ns).toFixed(2)} GB/s`);
  const seconds = ms / 1_000;
  const done = requests === null ? "" : bar(tally.requests / requests, BAR);
  const of = requests === null ? "" : ` of ${requests}`;
  const out = [
    `requests  ${done} ${tally.requests}${of}, ${seconds.toFixed(1)} s`,
    `hit       ${bar(ratio, BAR)} ${(ratio * 100).toFixed(2)} % of ${tally.blocksAsked} blocks`,
  ];
  if (ram !== null) {
    const { used, bytes } = ram();
    const share = bytes === 0 ? 0 : used / bytes;
    out.push(`RAM       ${bar(share, BAR)} ${formatBytes(used)} of ${formatBytes(bytes)}`);
  }
  out.push(
    `read      ${formatBytes(tally.getBytes)} at ${rate(tally.getBytes, tally.getNs)}`,
    `written   ${formatBytes(tally.putBytes)} at ${rate(tally.putBytes, tally.putNs)}`,
    `proof     ${tally.wrongBytes} wrong bytes`,
  );
  return out;
}
