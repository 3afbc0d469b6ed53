import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Native } from "../../../native/index.ts";
import { connectEngineProbe } from "../engine-probe.ts";
import { startBenchServer } from "../engine-server.ts";
import { Fio, type FioOptions } from "../ssd/index.ts";

/** What restores are held against, measured in the same run. */
export interface RestoreLimit extends AsyncDisposable {
  /** What it is, for people. */
  readonly name: string;
  /** 10^9 bytes a second, for so many blocks. */
  gbps(blocks: number): Promise<number>;
}

const WARM_UP_PASSES = 5;

export interface CopyOutOptions {
  readonly blockBytes: number;
  /** The most blocks that are asked for. */
  readonly blocksMax: number;
  readonly signal: AbortSignal;
}

/** Acquire, copy out, release, between two processes, as `bench engine` has it. */
export async function openCopyOutLimit(
  native: Native,
  { blockBytes, blocksMax, signal }: CopyOutOptions,
): Promise<RestoreLimit> {
  await using opened = new AsyncDisposableStack();
  const folder = mkdtempSync(join(tmpdir(), "hearth-bench-"));
  opened.defer(() => rmSync(folder, { recursive: true, force: true }));
  const server = opened.use(await startBenchServer({ folder, blockBytes, signal }));
  const { client, probe } = await connectEngineProbe(native, {
    socketPath: server.paths.enginePath,
    blockBytes,
    resident: blocksMax,
  });
  opened.use(client);
  await probe.fillResident();
  // Pages are touched and code is compiled before anything counts.
  for (let pass = 0; pass < WARM_UP_PASSES; pass++) await probe.copyOutOnce(blocksMax);
  const held = opened.move();
  return {
    name: "copy out, as bench engine",
    async gbps(blocks) {
      const start = Bun.nanoseconds();
      const bytes = await probe.copyOutOnce(blocks);
      return bytes / (Bun.nanoseconds() - start);
    },
    [Symbol.asyncDispose]: () => held.disposeAsync(),
  };
}

/** fio reading one large file in the same folder, with the same length of blocks and depth. */
export async function openFioLimit(
  program: string,
  options: FioOptions,
  blockBytes: number,
): Promise<RestoreLimit> {
  const fio = await Fio.layOut(program, options, blockBytes);
  return {
    name: `fio, ${fio.engine}`,
    gbps: () => fio.gbps("read", blockBytes),
    [Symbol.asyncDispose]: async () => rmSync(options.file, { force: true }),
  };
}
