import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Agent } from "../kit/agent.ts";
import { quantile } from "../kit/compare.ts";
import type { LaneContext } from "../kit/lane.ts";
import { lmcache, writeAndRead } from "../kit/lmcache.ts";
import { say } from "../kit/say.ts";

const KEYS = 32;
const KIB = 128;
const ROUNDS = 3;
const TIMES_FASTER = 3;
const VERIFIED = `All ${KEYS} keys data verified OK`;

type Operation = "Store" | "Load";

interface Measured {
  readonly operation: string;
  readonly total_keys: number;
  readonly total_success: number;
  readonly throughput_avg_mbps: number;
}

interface Result {
  readonly mbps: Readonly<Record<Operation, number>>;
  readonly isComplete: boolean;
  readonly isVerified: boolean;
}

/** Objects that LMCache's storage manager stored come back after an agent restart, from SSD. */
async function storageManager(context: LaneContext, agent: Agent): Promise<void> {
  const { sheet } = context;
  const between = async () => {
    await agent.kill();
    await agent.start();
  };
  const { stored, loaded, equal } = await writeAndRead(context, agent, { between });
  sheet.atLeast(
    "storage manager, stall_ms 5,000: objects loaded after the agent was killed",
    loaded,
    stored,
  );
  sheet.atLeast("storage manager, stall_ms 5,000: objects with equal bytes", equal, stored);
}

/** One run of `lmcache bench l2`. */
async function bench(context: LaneContext, name: string, adapter: object): Promise<Result> {
  const { engine, folder } = context;
  const output = join(folder, `${name}.json`);
  const command = [
    ...[join(engine.folder, "bin", "lmcache"), "bench", "l2"],
    ...["--l2-adapter", JSON.stringify(adapter), "--num-keys", `${KEYS}`],
    ...["--data-size-kb", `${KIB}`, "--rounds", `${ROUNDS}`, "--no-skip-verify"],
    ...["--format", "json", "--output", output],
  ];
  const printed = await lmcache(context, name, command);
  const { metrics } = JSON.parse(readFileSync(output, "utf8"));
  const found = Object.values(metrics as Record<string, Measured>);
  const of = (wanted: Operation) => found.find(({ operation }) => operation === wanted)!;
  const [store, load] = [of("Store"), of("Load")];
  const mbps = { Store: store.throughput_avg_mbps, Load: load.throughput_avg_mbps };
  say(`${name}: store ${mbps.Store} MB/s, load ${mbps.Load} MB/s`);
  return {
    mbps,
    isComplete: [store, load].every((one) => one.total_success === one.total_keys),
    isVerified: printed.includes(VERIFIED),
  };
}

function plugIn(agent: Agent, namespace: string): object {
  return {
    ...{ type: "plugin", module_path: "hearth_lmcache", class_name: "HearthL2Adapter" },
    adapter_params: { socket: agent.socket, namespace },
  };
}

type Results = Readonly<Record<"fs" | "ram" | "ssd", Result[]>>;

/**
 * Runs the benchmark with each adapter in turn. `fs` leaves its bytes in the page cache; so does
 * `ram`, an agent without SSD. `ssd` also writes them to the drive, while the next are stored.
 */
async function compareAdapters(context: LaneContext, ssd: Agent, pairs: number): Promise<Results> {
  const { folder } = context;
  await using ram = await Agent.start({ name: "ram", folder, ramMib: 512 });
  const results: Results = { fs: [], ram: [], ssd: [] };
  // Starts the agents' code once: a server that has just started is no server at work.
  await bench(context, "warm-up-ram", plugIn(ram, "warm-up"));
  await bench(context, "warm-up-ssd", plugIn(ssd, "warm-up"));
  for (let pair = 1; pair <= pairs; pair++) {
    const files = { type: "fs", base_path: join(folder, `fs-${pair}`) };
    results.fs.push(await bench(context, `fs-${pair}`, files));
    results.ram.push(await bench(context, `ram-${pair}`, plugIn(ram, `pair ${pair}`)));
    results.ssd.push(await bench(context, `ssd-${pair}`, plugIn(ssd, `pair ${pair}`)));
  }
  return results;
}

/** LMCache's storage manager on Hearth; its own benchmark, our plug-in against its `fs` adapter. */
export async function lmcacheBench(context: LaneContext): Promise<void> {
  const { sheet, folder, isQuick } = context;
  const pairs = isQuick ? 3 : 9;
  await using ssd = await Agent.start({ name: "ssd", folder, ramMib: 512, ssdMib: 1_024 });
  await storageManager(context, ssd);
  sheet.figure("settings of the adapters", "defaults: stall_ms 100");
  const results = await compareAdapters(context, ssd, pairs);
  const all = Object.values(results).flat();
  const kept = all.filter(({ isComplete, isVerified }) => isComplete && isVerified).length;
  sheet.atLeast(`runs that stored, loaded and verified ${KEYS} keys a round`, kept, all.length);
  for (const operation of ["Store", "Load"] as const) {
    const median = (name: keyof Results) => {
      const rates = results[name].map(({ mbps }) => mbps[operation]);
      sheet.figure(`${operation}, ${name}, MB/s, median of ${pairs}`, quantile(rates, 0.5));
      return quantile(rates, 0.5);
    };
    const [fs, ram] = [median("fs"), median("ram")];
    median("ssd");
    const claim = `${operation} of ${KEYS} x ${KIB} KiB, hearth / fs, medians of ${pairs} pairs`;
    sheet.atLeast(claim, ram / fs, TIMES_FASTER);
  }
}
