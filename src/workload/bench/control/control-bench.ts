import { openBus } from "../../../bus/index.ts";
import { connectControl } from "../../../control/client/index.ts";
import { HearthError, systemClock, systemRandom } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { Broker, type Carrier } from "./broker.ts";
import { benchCommands, type CommandFigures } from "./command-bench.ts";
import type { Encoding } from "./command-load.ts";
import { benchPrune, type PruneFigures } from "./prune-bench.ts";

export interface ControlBenchOptions {
  /** Null: a nats-server of the benchmark's own. */
  readonly natsUrl: string | null;
  /** Of the benchmark's own server. */
  readonly carrier: Carrier;
  readonly encoding: Encoding;
  readonly hashes: number;
  readonly inFlight: number;
  /** Agent without SSD tier and ledger: nothing is durable. */
  readonly ramOnly: boolean;
  readonly seconds: number;
  readonly rounds: number;
  /** 0: no prune. */
  readonly pruneBlocks: number;
  readonly pruneRounds: number;
  readonly signal: AbortSignal;
  readonly onProgress: (what: string) => void;
}

export type ControlBenchResult = CommandFigures &
  Partial<PruneFigures> & {
    readonly prune_blocks: number;
    readonly prune_rounds: number;
    readonly carrier: string;
  };

const CONNECT_MS = 10_000;
const WORKER_BYTES = 6;

/** Measures commands with their receipts over a bus, and a prune by command. */
export async function benchControl(
  native: Native,
  options: ControlBenchOptions,
): Promise<ControlBenchResult> {
  const { carrier, pruneBlocks, pruneRounds, signal } = options;
  const own = options.natsUrl === null ? await Broker.start(carrier, signal) : null;
  await using _broker = own?.broker;
  const natsUrl = own?.url ?? options.natsUrl!;
  const parts = { clock: systemClock, random: systemRandom };
  await using bus = openBus({ url: natsUrl, name: "hearth bench", ...parts });
  if (!(await bus.connected(CONNECT_MS))) {
    throw new HearthError("DEADLINE", `no connection to ${natsUrl}: ${bus.state.why}`);
  }
  // A bus may be shared: nobody else is called so.
  const random = crypto.getRandomValues(new Uint8Array(WORKER_BYTES)).toHex();
  const workerId = `bench-${random}`;
  await using client = connectControl({ bus, issuer: "bench" });
  const common = { ...options, bus, client, natsUrl, workerId };
  const commands = await benchCommands(native, common);
  const beside = { rounds: pruneRounds, blocks: pruneBlocks };
  const pruned = pruneBlocks === 0 ? {} : await benchPrune(native, { ...common, ...beside });
  const { commands_per_s, p50_us, p99_us, ...rest } = commands;
  return {
    ...{ commands_per_s, p50_us, p99_us },
    ...pruned,
    ...rest,
    prune_blocks: pruneBlocks,
    prune_rounds: pruneBlocks === 0 ? 0 : pruneRounds,
    carrier: new URL(natsUrl.split(",")[0]!).protocol.slice(0, -1),
  };
}
