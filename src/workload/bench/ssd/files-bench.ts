import { join } from "node:path";
import { HearthError } from "../../../core/index.ts";
import { fileBytesOf } from "../../../store/kvb/index.ts";
import { makeBenchFolder } from "./bench-folder.ts";
import { CHAIN_BLOCKS, type DiskMethod } from "./bench-tier.ts";
import { FilesProcess } from "./files-process.ts";

export interface SsdFilesOptions {
  readonly dir: string;
  readonly files: number;
  readonly blockBytes: number;
  readonly depth: number;
  readonly method: DiskMethod;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

export interface SsdFilesResult {
  readonly files: number;
  readonly block_bytes: number;
  /** Over all of them, over the first tenth and over the last. */
  readonly create_per_s: number;
  readonly create_first_per_s: number;
  readonly create_last_per_s: number;
  readonly last_over_first: number;
  /** From the start of a process until its tier has recovered: after a clean stop, and a kill. */
  readonly open_ready_s: number;
  readonly open_ready_after_kill_s: number;
  /** Files that the kill left without a row. */
  readonly adopted_after_kill: number;
  /** Keys of one block and whether it is there. */
  readonly lookup_p99_us: number;
  /** Of the process when it was ready. */
  readonly rss_mb: number;
}

/** Files being written while the process is killed: a share of those that count. */
const LOAD = 0.25;
/** It is killed when so much of the load is on SSD. */
const LOAD_AT_KILL = 0.1;
const SAMPLES = 20_000;
/** Per file: inode, directory entry and row of the index. */
const OVERHEAD_BYTES = 1024;

/** Creates many blocks and starts again on them, each time in a new process of this program. */
export async function benchSsdFiles(options: SsdFilesOptions): Promise<SsdFilesResult> {
  const { dir, blockBytes, onProgress } = options;
  const files = wholeChains(options.files);
  const load = wholeChains(files * LOAD);
  const fileBytes = fileBytesOf(blockBytes) + OVERHEAD_BYTES;
  using own = makeBenchFolder(dir, (files + load) * fileBytes);
  const child = { ...options, folder: join(own.path, "ssd"), blocksMax: files + load };

  onProgress("starting");
  const made = await create(child, files, onProgress);
  onProgress("starting after a clean stop");
  const clean = await lookUpAndKill(child, files, load, onProgress);
  onProgress("starting after a kill");
  await using killed = await FilesProcess.start(child);
  mustHave(killed, files + clean.loaded);
  await killed.stop();
  return {
    files,
    block_bytes: blockBytes,
    create_per_s: Math.round(made.perS),
    create_first_per_s: Math.round(made.firstPerS),
    create_last_per_s: Math.round(made.lastPerS),
    last_over_first: rounded(made.lastPerS / made.firstPerS),
    open_ready_s: rounded(clean.readySeconds),
    open_ready_after_kill_s: rounded(killed.readySeconds),
    adopted_after_kill: killed.found.adopted,
    lookup_p99_us: rounded(clean.p99Us),
    rss_mb: clean.rssMb,
  };
}

type ChildOptions = Parameters<typeof FilesProcess.start>[0];

async function create(child: ChildOptions, files: number, onProgress: (text: string) => void) {
  await using process = await FilesProcess.start(child);
  process.tell({ do: "create", first: 0, count: files });
  const made = await process.hear("create", (news) => {
    if (news.did === "createSome") onProgress(`${news.files} of ${files} blocks`);
  });
  await process.stop();
  return made;
}

/** Starts after a clean stop, looks blocks up, and is killed while it writes more. */
async function lookUpAndKill(
  child: ChildOptions,
  files: number,
  load: number,
  onProgress: (text: string) => void,
) {
  await using process = await FilesProcess.start(child);
  mustHave(process, files);
  const { readySeconds, found } = process;
  process.tell({ do: "lookUp", count: files, samples: SAMPLES });
  const { p99Us } = await process.hear("lookUp");
  onProgress("killing it at work");
  process.tell({ do: "create", first: files, count: load });
  let loaded = 0;
  while (loaded < load * LOAD_AT_KILL) loaded = (await process.hear("createSome")).files;
  await process.kill();
  return { readySeconds, rssMb: found.rssMb, p99Us, loaded };
}

/** A block that was on SSD is there again. */
function mustHave({ found }: FilesProcess, files: number): void {
  if (found.blocks >= files) return;
  throw new HearthError(
    "INTERNAL",
    `${files - found.blocks} of ${files} blocks were not found again`,
  );
}

function wholeChains(blocks: number): number {
  return Math.ceil(blocks / CHAIN_BLOCKS) * CHAIN_BLOCKS;
}

const rounded = (value: number) => Number(value.toFixed(3));
