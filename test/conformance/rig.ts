import { seededRandom } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import {
  ActiveLoad,
  type PrefixIndex,
  ROUTER_DEFAULTS,
  Router,
  type RouterSettings,
  WorkerTable,
} from "../../src/router/index.ts";
import { ManualClock } from "../support/index.ts";
import type { Rig } from "./scenario.ts";

/** A whole router on a clock that stands still, over this index. */
export function makeRig(index: PrefixIndex, settings: Partial<RouterSettings>): Rig {
  const clock = new ManualClock();
  const all = { ...ROUTER_DEFAULTS, ...settings };
  const table = new WorkerTable();
  const { blockTokens, requestExpiryMs } = all;
  const load = new ActiveLoad({ clock, blockTokens, requestExpiryMs });
  const random = seededRandom(1);
  const parts = { clock, random, native: loadNative(), settings: all, table, index, load };
  const router = new Router(parts);
  return { router, index, table, clock, [Symbol.dispose]: () => router[Symbol.dispose]() };
}
