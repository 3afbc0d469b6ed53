import { type BigIntStats, statSync } from "node:fs";
import { stat } from "node:fs/promises";
import type { Config } from "../config/index.ts";
import { type Clock, HearthError, sleep, type WorkerId } from "../core/index.ts";
import { type BlockDisk, openDisk } from "../native/index.ts";
import type { Logger } from "../observability/index.ts";
import {
  type BlockIndex,
  openBlockIndex,
  openRetentionLedger,
  type RetentionLedger,
} from "../store/index/index.ts";
import type { SsdSettings, TieredStore } from "../store/index.ts";
import {
  type ClaimedFolder,
  claimFolder,
  type FolderOwner,
  readMachineId,
} from "../store/kvb/index.ts";
import type { AgentContext } from "./agent-context.ts";
import { INDEX_CLOSE_MS, SETTLE_MS } from "./process.ts";

interface SsdServiceParts extends AgentContext {
  /** Called after the blocks on SSD are restored and before any of them can be evicted. */
  readonly recovered: (ledger: RetentionLedger) => Promise<void>;
}

/** Interval at which the health of the index and of the SSD folder is checked. */
const WATCH_MS = 1_000;
/**
 * Maximum SSD operations in flight: enough to keep NVMe busy, few enough that a single read waits
 * little.
 */
const SSD_DEPTH = 64;

/** Owns the folder, the disk and the index of the SSD tier. */
export class SsdService {
  readonly index: BlockIndex;
  readonly ledger: RetentionLedger;
  readonly disk: BlockDisk;
  readonly #folder: ClaimedFolder;
  readonly #clock: Clock;
  readonly #logger: Logger;
  #watch: Disposable | null = null;
  #isLooking = false;

  private constructor(
    parts: SsdServiceParts,
    folder: ClaimedFolder,
    opened: {
      readonly index: BlockIndex;
      readonly ledger: RetentionLedger;
      readonly disk: BlockDisk;
    },
  ) {
    this.#clock = parts.clock;
    this.#logger = parts.logger;
    this.#folder = folder;
    this.index = opened.index;
    this.ledger = opened.ledger;
    this.disk = opened.disk;
  }

  /**
   * Opens the configured SSD tier and attaches it to the store. Returns null if none is configured.
   * Throws SSD_FOREIGN, SSD_IN_USE, SSD_UNAVAILABLE, INDEX_IN_USE or INDEX_FOREIGN.
   */
  static async open(parts: SsdServiceParts): Promise<SsdService | null> {
    const { config, native, clock } = parts;
    const { ssdDir } = config.kv;
    if (ssdDir === null) return null;
    const worker = config.node.id as WorkerId;
    const machine = readMachineId();
    const folder = claimFolder({ native, dir: ssdDir, worker, machine, clock });
    const mark = folderIdentity(ssdDir);
    const indexOpens = openIndex(parts, folder.owner);
    const ledgerOpens = openLedger(parts, folder.owner);
    const diskOpens = openFolder(parts, ssdDir);
    try {
      // Wait for all three. If one fails, the others must be closed.
      await Promise.allSettled([indexOpens, ledgerOpens, diskOpens]);
      const [index, ledger, disk] = [await indexOpens, await ledgerOpens, await diskOpens];
      const cold = new SsdService(parts, folder, { index, ledger, disk });
      await cold.#attach(parts, { path: ssdDir, mark });
      return cold;
    } catch (error) {
      await indexOpens.then((opened) => opened.close(0)).catch(() => false);
      await ledgerOpens.then((opened) => opened.close(0)).catch(() => false);
      await diskOpens.then((opened) => opened.close(0)).catch(() => false);
      folder[Symbol.dispose]();
      throw error;
    }
  }

  async #attach(parts: SsdServiceParts, folder: OpenedFolder): Promise<void> {
    const { config, clock, logger, health, store, namespaces, incarnation } = parts;
    const { kv } = config;
    const startMs = clock.monotonicMs();
    await mustBeThere(folder);
    const report = await store.openSsd({
      ...ssdSettings(config),
      disk: this.disk,
      index: this.index,
      namespaces,
      capacityBytes: kv.ssdBytes ?? 0,
      writeQueueBytes: kv.ssdWriteQueueBytes,
      readDeadlineMs: config.engine.acquireDeadlineMs,
      incarnation,
      health,
      log: (level, text, fields) => logger.log(level, text, fields),
      beforeStart: () => parts.recovered(this.ledger),
    });
    const { setAside } = this.index.state;
    const { setAside: holdsSetAside } = this.ledger.state;
    if (holdsSetAside !== null) {
      logger.error("pins and leases lost: their damaged record was set aside", holdsSetAside);
    }
    if (setAside !== null) {
      logger.warn("damaged index set aside, rebuilt from the block files", setAside);
    }
    const seconds = Number(((clock.monotonicMs() - startMs) / 1_000).toFixed(3));
    logger.info("SSD tier recovered", { ...report, seconds });
    const { direct, method, methodReason } = this.disk;
    if (!direct) {
      health.raise("KV_SSD_BUFFERED", "the file system refuses O_DIRECT: pages are cached twice");
    }
    if (method === "threads" && kv.ssdIo === "auto") {
      health.raise("KV_LIMITS", `SSD I/O uses threads: ${methodReason}`);
    }
    this.#watch = clock.every(WATCH_MS, () => {
      void this.#lookAtFolder(store, folder);
      if (method === "io_uring" && !this.disk.registered && !this.disk.registering) {
        health.raise("KV_LIMITS", "RAM is not registered with io_uring: raise LimitMEMLOCK");
      }
      health.report("KV_INDEX", this.index.state.failing);
      health.report("KV_HOLDS", this.ledger.state.failing);
    });
  }

  /**
   * Detects that the SSD path now leads to a different folder. The open descriptor still refers to
   * the original folder, so I/O would not fail.
   */
  async #lookAtFolder(store: TieredStore, { path, mark }: OpenedFolder): Promise<void> {
    // A check hangs while the file system hangs. Run at most one.
    if (this.#isLooking) return;
    this.#isLooking = true;
    store.ssd?.setReplaced(await replacementReason(path, mark));
    this.#isLooking = false;
  }

  /**
   * Writes blocks that exist only in RAM to SSD. Ends early after 20 s, or when `forceStop` fires.
   */
  async settle(store: TieredStore, forceStop: AbortSignal): Promise<void> {
    const { ssd } = store;
    if (ssd === null || forceStop.aborted) return;
    if (ssd.snapshot().writesStopped !== null) {
      this.#logger.warn("RAM not written to SSD: the SSD tier accepts no writes", {});
      return;
    }
    const stop = new AbortController();
    const ended = AbortSignal.any([stop.signal, forceStop]);
    const giveUp = sleep(this.#clock, SETTLE_MS, ended).catch(() => undefined);
    const report = await Promise.race([ssd.persist(), giveUp]);
    stop.abort();
    if (report === undefined) {
      this.#logger.warn("writing RAM to SSD timed out", {
        seconds: SETTLE_MS / 1_000,
      });
    } else {
      this.#logger.info("RAM written to SSD", { ...report });
    }
  }

  /** Writes pending index changes and releases the folder. The store must be closed before. */
  async close(): Promise<void> {
    this.#watch?.[Symbol.dispose]();
    await Promise.all([this.index.close(INDEX_CLOSE_MS), this.ledger.close(INDEX_CLOSE_MS)]);
    this.#folder[Symbol.dispose]();
  }
}

/** Path and identity of the SSD folder at the time this agent claimed it. */
interface OpenedFolder {
  readonly path: string;
  readonly mark: FolderIdentity;
}

/**
 * Checks that the SSD folder is still the claimed one after the disk was opened. Throws
 * SSD_UNAVAILABLE if it was replaced.
 */
async function mustBeThere({ path, mark }: OpenedFolder): Promise<void> {
  const why = await replacementReason(path, mark);
  if (why === null) return;
  throw new HearthError("SSD_UNAVAILABLE", `ssd_dir was replaced while it was opened: ${why}`, {
    fix: "start the agent again once the file system is mounted",
  });
}

/** Returns the settings of the SSD tier that a reload can change. */
export function ssdSettings({ kv }: Config): SsdSettings {
  return {
    ttlMs: kv.ssdTtlMs === 0 ? null : kv.ssdTtlMs,
    writePolicy: kv.writePolicy,
    scrubBytesPerS: kv.scrubBytesPerSecond,
  };
}

function openIndex(parts: SsdServiceParts, folder: FolderOwner): Promise<BlockIndex> {
  const { config, clock, incarnation } = parts;
  const { worker, machine, created } = folder;
  const owner = { worker, machine: machine ?? "", store: String(created) };
  return openBlockIndex({ folder: config.kv.indexDir!, incarnation, owner, clock });
}

function openLedger(parts: SsdServiceParts, folder: FolderOwner): Promise<RetentionLedger> {
  const { config, clock, incarnation } = parts;
  const { worker, machine } = folder;
  const owner = { worker, machine: machine ?? "" };
  return openRetentionLedger({ folder: config.kv.indexDir!, incarnation, owner, clock });
}

function openFolder({ config, native, region, clock }: SsdServiceParts, folder: string) {
  const { ssdIo: method } = config.kv;
  return openDisk(native, { folder, arena: region, depth: SSD_DEPTH, method, clock });
}

/** Device and inode of a folder, independent of its path. */
export interface FolderIdentity {
  readonly device: bigint;
  readonly inode: bigint;
}

const GONE = new Set(["ENOENT", "ENOTDIR"]);

function markOf({ dev, ino }: BigIntStats): FolderIdentity {
  return { device: dev, inode: ino };
}

/**
 * Returns the identity of the folder at `path`. Throws if the path does not exist. Blocks while the
 * file system hangs.
 */
export function folderIdentity(path: string): FolderIdentity {
  return markOf(statSync(path, { bigint: true }));
}

/**
 * Describes how the folder at `path` differs from the marked one. Null if it is the same folder, or
 * if the file system reports an error: disk faults are reported separately.
 */
export async function replacementReason(
  path: string,
  mark: FolderIdentity,
): Promise<string | null> {
  try {
    const now = markOf(await stat(path, { bigint: true }));
    if (now.device !== mark.device) return `another file system is mounted at ${path}`;
    return now.inode === mark.inode ? null : `${path} is another folder, made later`;
  } catch (error) {
    return GONE.has((error as NodeJS.ErrnoException).code ?? "") ? `${path} is gone` : null;
  }
}
