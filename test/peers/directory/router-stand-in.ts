import type { Bus, Subscription } from "../../../src/bus/index.ts";
import { LOCATE_SUBJECT } from "../../../src/peers/directory/index.ts";

export interface LocateQuestion {
  readonly version: number;
  readonly cluster: string;
  readonly worker_id: string;
  readonly namespace: string;
  readonly keys: readonly string[];
}

/** Answers `kv-locate` like the router; `holders`: workers of a key in hex, best first. */
export function answerLocate(
  bus: Bus,
  holders: (key: string, question: LocateQuestion) => readonly string[],
): Subscription {
  return bus.subscribe(LOCATE_SUBJECT, ({ data, reply }) => {
    const question = JSON.parse(Buffer.from(data).toString()) as LocateQuestion;
    const held = question.keys.map((key) => holders(key, question));
    const workers = [...new Set(held.flat())];
    const blocks = held.map((names) => names.map((name) => workers.indexOf(name)));
    if (reply !== null) bus.publish(reply, Buffer.from(JSON.stringify({ workers, blocks })));
  });
}
