import { join, relative } from "node:path";
import { formatDuration } from "../core/index.ts";
import { EVENT_CHECKS } from "./event-checks.ts";
import { exactBytes } from "./kinds.ts";
import { PEER_CHECKS } from "./peer-checks.ts";
import { quoteText } from "./problems.ts";
import type { Config } from "./schema.ts";
import { AUDIT_BYTES, AUDIT_FILES } from "./sections/control.ts";
import { SSD_DIR_EXAMPLE } from "./sections/kv-ssd.ts";
import { API_CHECKS, NATS_CHECKS } from "./service-checks.ts";
import { type SumCheck, unless } from "./sum-check.ts";

/** The parts of a request to reserve blocks: frame header, request header, one block. */
const RESERVE_HEADER_BYTES = 32;
const RESERVE_ITEM_BYTES = 80;
/** What one entry of the block table costs at most, all its columns included. */
const TABLE_ENTRY_BYTES = 220;
/** A path, relative to `ssd_dir`, in one of the 256 folders that hold block files. */
const SHARD = /^[0-9a-f]{2}(?:\/|$)/;

/** All of them. A rule's keys are all reloadable or none is, so that no reload can break a rule. */
export const SUM_CHECKS: readonly SumCheck[] = [
  {
    keys: ["kv.low_water", "kv.high_water"],
    find: ({ kv }) =>
      unless(
        kv.lowWater < kv.highWater,
        `low_water ${kv.lowWater} is not below high_water ${kv.highWater}`,
        "leave room between the two, as in 0.9 and 0.95",
      ),
  },
  {
    keys: ["control.pin_share_owner", "control.pin_share"],
    find: ({ control }) =>
      unless(
        control.pinShareOwner <= control.pinShare,
        `pin_share_owner ${control.pinShareOwner} is above pin_share ${control.pinShare}`,
        "give one owner at most what all of them have",
      ),
  },
  ...NATS_CHECKS,
  ...API_CHECKS,
  ...PEER_CHECKS,
  ...EVENT_CHECKS,
  needsNatsUrl("command_stream", ({ nats }) => nats.commandStream),
  needsNatsUrl("workers_bucket", ({ nats }) => nats.workersBucket),
  needsAuditFile("audit_bytes", ({ control }) => control.auditBytesMax !== AUDIT_BYTES),
  needsAuditFile("audit_files", ({ control }) => control.auditFiles !== AUDIT_FILES),
  {
    keys: ["engine.items_max", "engine.frame_max"],
    find({ engine: { itemsMax, frameBytesMax } }) {
      const needed = RESERVE_HEADER_BYTES + RESERVE_ITEM_BYTES * itemsMax;
      const fit = Math.floor((frameBytesMax - RESERVE_HEADER_BYTES) / RESERVE_ITEM_BYTES);
      return unless(
        needed <= frameBytesMax,
        `${itemsMax} blocks need a frame of ${needed} bytes; frame_max is ${frameBytesMax}`,
        `set items_max to at most ${fit} or frame_max to at least ${wholeKiB(needed)}`,
      );
    },
  },
  {
    keys: ["engine.handles_max", "engine.items_max"],
    find: ({ engine: { handlesMax, itemsMax } }) =>
      unless(
        handlesMax >= itemsMax,
        `handles_max ${handlesMax} is below items_max ${itemsMax}`,
        `set handles_max to at least ${itemsMax}`,
      ),
  },
  {
    keys: ["engine.unread_max", "engine.frame_max"],
    find({ engine }) {
      const unread = exactBytes(engine.unreadBytesMax);
      const frame = exactBytes(engine.frameBytesMax);
      return unless(
        engine.unreadBytesMax >= engine.frameBytesMax,
        `unread_max ${unread} is below frame_max ${frame}`,
        `set unread_max to at least ${frame}`,
      );
    },
  },
  {
    keys: ["engine.acquire_deadline", "engine.lease"],
    find({ engine }) {
      const deadline = formatDuration(engine.acquireDeadlineMs);
      const lease = formatDuration(engine.leaseMs);
      return unless(
        engine.acquireDeadlineMs < engine.leaseMs,
        `acquire_deadline ${deadline} is not below lease ${lease}`,
        `use less than ${lease}, or a longer lease`,
      );
    },
  },
  {
    keys: ["engine.gpu_window_blocks", "kv.blocks_max"],
    find: ({ engine: { gpuWindowBlocks }, kv: { blocksMax } }) =>
      unless(
        gpuWindowBlocks < blocksMax,
        `a mirror of ${gpuWindowBlocks} blocks leaves no room in a table of ${blocksMax}`,
        `set kv.blocks_max above ${gpuWindowBlocks} or lower engine.gpu_window_blocks`,
      ),
  },
  {
    keys: ["kv.ssd_dir", "kv.ssd_gib"],
    find: ({ kv }) =>
      unless(
        kv.ssdDir === null || kv.ssdBytes !== null,
        "an SSD tier needs a cap, and ssd_gib is not set",
        "write ssd_gib = 500 below [kv], or remove ssd_dir",
      ),
  },
  {
    keys: ["kv.ssd_gib", "kv.ssd_dir"],
    find: ({ kv }) =>
      unless(
        kv.ssdBytes === null || kv.ssdDir !== null,
        "has no effect without ssd_dir",
        `write ssd_dir = "${SSD_DIR_EXAMPLE}" below [kv], or remove it`,
      ),
  },
  {
    keys: ["kv.index_dir", "kv.ssd_dir"],
    find: ({ kv }) =>
      unless(
        kv.indexDir === null || kv.ssdDir !== null,
        "has no effect without ssd_dir",
        `write ssd_dir = "${SSD_DIR_EXAMPLE}" below [kv], or remove it`,
      ),
  },
  {
    keys: ["kv.index_dir", "kv.ssd_dir"],
    find({ kv: { indexDir, ssdDir } }) {
      if (indexDir === null || ssdDir === null) return null;
      const inside = relative(ssdDir, indexDir);
      return unless(
        inside !== "" && !SHARD.test(inside),
        inside === "" ? "is ssd_dir itself" : "lies in a folder that block files go into",
        `use ${quoteText(join(ssdDir, "index"))}, or a folder elsewhere`,
      );
    },
  },
  {
    keys: ["kv.ssd_gib", "kv.ssd_dir"],
    find({ kv }, facts) {
      if (kv.ssdDir === null || kv.ssdBytes === null) return null;
      const bytes = facts.fileSystemBytes?.(kv.ssdDir) ?? null;
      return unless(
        bytes === null || kv.ssdBytes <= bytes,
        `${gibUp(kv.ssdBytes)} is more than the whole file system of ssd_dir`,
        `use less than ${gibDown(bytes ?? 0)}, or another ssd_dir`,
      );
    },
  },
  {
    keys: ["kv.ram_gib"],
    find: ({ kv }, { memoryBytes }) =>
      unless(
        memoryBytes === null || kv.ramBytes <= memoryBytes,
        `${gibUp(kv.ramBytes)} is more than this machine or its control group allows`,
        `use less than ${gibDown(memoryBytes ?? 0)}, or raise the limit (MemoryMax=, container)`,
      ),
  },
  {
    keys: ["kv.blocks_max", "kv.ssd_gib", "kv.ram_gib"],
    find({ kv }, { memoryBytes }) {
      if (memoryBytes === null || kv.ramBytes > memoryBytes) return null;
      const table = kv.blocksMax * TABLE_ENTRY_BYTES;
      const beside = `${gibUp(kv.ramBytes)} for blocks and ${gibUp(table)} for the table of them`;
      return unless(
        kv.ramBytes + table <= memoryBytes,
        `${beside} are more than the ${gibDown(memoryBytes)} allowed here`,
        "lower kv.blocks_max or the RAM for blocks",
      );
    },
  },
];

function needsNatsUrl(key: string, pick: (config: Config) => string | null): SumCheck {
  return {
    keys: [`nats.${key}`, "nats.url"],
    find: (config) =>
      unless(
        pick(config) === null || config.nats.url !== null,
        "has no effect without url",
        "write url below [nats], or remove it",
      ),
  };
}

/** What is written as it is anyway promises nothing. */
function needsAuditFile(key: string, isOther: (config: Config) => boolean): SumCheck {
  return {
    keys: [`control.${key}`, "control.audit_file"],
    find: (config) =>
      unless(
        !isOther(config) || config.control.auditFile !== null,
        "has no effect without audit_file",
        "write audit_file below [control], or remove it",
      ),
  };
}

function gibUp(bytes: number): string {
  return `${Math.ceil((bytes / 2 ** 30) * 100) / 100}GiB`;
}

function gibDown(bytes: number): string {
  return `${Math.floor((bytes / 2 ** 30) * 100) / 100}GiB`;
}

/** Bytes up to the next whole KiB, as text. */
function wholeKiB(bytes: number): string {
  return exactBytes(Math.ceil(bytes / 1024) * 1024);
}
