import type { Clock } from "../core/index.ts";
import type { Logger } from "./logger.ts";

/** One thing that is the matter now. */
export interface HealthProblem {
  readonly code: HealthCode;
  readonly severity: "warn" | "error";
  /** When it began; of the monotonic clock. */
  readonly sinceMs: number;
  /** What is the matter, the same words for all of this code. */
  readonly meaning: string;
  /** This case: paths, counts, the kernel's words. */
  readonly details: string;
  readonly fix: string;
}

export interface HealthCount {
  readonly code: HealthCode;
  readonly isRaised: boolean;
  /** Times it was raised since the start; raising what is raised does not count. */
  readonly raised: number;
}

export interface RaiseOptions {
  /** It ends by itself when it was not raised again for so long; else only `clear` ends it. */
  readonly forMs?: number;
}

/**
 * What is the matter with this agent, by code. The parts that find out raise and clear; a change is
 * logged and counted once, however often it is told.
 */
export interface Health extends Disposable {
  /** Raises it; where it is raised already, only its details and its end change. */
  raise(code: HealthCode, details: string, options?: RaiseOptions): void;
  clear(code: HealthCode): void;
  isRaised(code: HealthCode): boolean;
  /** Errors first; the oldest first within a severity. */
  list(): HealthProblem[];
  /** All codes. */
  counts(): HealthCount[];
  /** Nothing is timed any more. */
  [Symbol.dispose](): void;
}

export interface HealthOptions {
  readonly clock: Clock;
  readonly log: Pick<Logger, "log">;
}

const SEVERITIES = ["error", "warn"];

export function createHealth(options: HealthOptions): Health {
  return new HealthRegister(options);
}

class HealthRegister implements Health {
  readonly #clock: Clock;
  readonly #log: Pick<Logger, "log">;
  readonly #problems = new Map<HealthCode, HealthProblem>();
  readonly #ends = new Map<HealthCode, Disposable>();
  readonly #raised = new Map<HealthCode, number>();

  constructor({ clock, log }: HealthOptions) {
    this.#clock = clock;
    this.#log = log;
  }

  raise(code: HealthCode, details: string, { forMs }: RaiseOptions = {}): void {
    const spec = HEALTH_CODES[code];
    const known = this.#problems.get(code);
    const sinceMs = known?.sinceMs ?? this.#clock.monotonicMs();
    this.#problems.set(code, { code, ...spec, sinceMs, details });
    this.#stopTimer(code);
    if (forMs !== undefined) {
      this.#ends.set(
        code,
        this.#clock.after(forMs, () => this.clear(code)),
      );
    }
    if (known !== undefined) return;
    this.#raised.set(code, (this.#raised.get(code) ?? 0) + 1);
    this.#log.log(spec.severity, spec.meaning, { code, details, fix: spec.fix });
  }

  clear(code: HealthCode): void {
    const problem = this.#problems.get(code);
    if (problem === undefined) return;
    this.#stopTimer(code);
    this.#problems.delete(code);
    const lastedMs = this.#clock.monotonicMs() - problem.sinceMs;
    const seconds = Number((lastedMs / 1_000).toFixed(3));
    this.#log.log("info", "what was the matter is over", { code, seconds });
  }

  isRaised(code: HealthCode): boolean {
    return this.#problems.has(code);
  }

  list(): HealthProblem[] {
    const rank = ({ severity }: HealthProblem) => SEVERITIES.indexOf(severity);
    return [...this.#problems.values()].sort((a, b) => rank(a) - rank(b) || a.sinceMs - b.sinceMs);
  }

  counts(): HealthCount[] {
    return HEALTH_CODE_NAMES.map((code) => ({
      code,
      isRaised: this.#problems.has(code),
      raised: this.#raised.get(code) ?? 0,
    }));
  }

  [Symbol.dispose](): void {
    for (const code of this.#ends.keys()) this.#stopTimer(code);
  }

  #stopTimer(code: HealthCode): void {
    this.#ends.get(code)?.[Symbol.dispose]();
    this.#ends.delete(code);
  }
}

export interface HealthCodeSpec {
  /** error: blocks are lost or at risk until somebody acts; warn: slower or smaller than asked. */
  readonly severity: "warn" | "error";
  /** What is the matter, as a sentence that ends nowhere. */
  readonly meaning: string;
  /** What an operator can do about it. */
  readonly fix: string;
}

/**
 * What can be the matter with an agent that runs. Codes are stable: log lines, metrics and HTTP
 * carry them, and `hearth reference health` prints this table. None of them makes it unready: a
 * cache that is degraded is still one.
 */
export const HEALTH_CODES = {
  KV_SSD_CSUM: {
    severity: "error",
    meaning: "blocks read from SSD did not have their checksum; they were set aside, not served",
    fix: "check the drive (smartctl -a, dmesg) and replace it if this comes back; RAM was right",
  },
  KV_RAM_CSUM: {
    severity: "error",
    meaning: "blocks in RAM did not have their checksum: they were dropped, and are written anew",
    fix: "look for ECC errors (edac-util, dmesg, IPMI) and replace the DIMM; the drive is fine",
  },
  KV_SSD_FULL: {
    severity: "warn",
    meaning: "the file system of ssd_dir is full: nothing more is written to it",
    fix: "free space on it, or lower kv.ssd_gib; writing resumes by itself",
  },
  KV_SSD_READ_ONLY: {
    severity: "error",
    meaning: "the file system of ssd_dir is read-only: blocks on it can be read only",
    fix: "find the cause (dmesg) and remount it for writing; writing resumes by itself",
  },
  KV_SSD_SLOW: {
    severity: "warn",
    meaning: "reads from SSD miss their deadline, and count as misses",
    fix: "see what else uses the drive (iostat -x); lower kv.scrub_rate or kv.ssd_depth",
  },
  KV_SSD_HUNG: {
    severity: "error",
    meaning: "the SSD does not answer: RAM serves alone until it does",
    fix: "check the drive and its controller (dmesg); it is used again once it answers",
  },
  KV_SSD_ERRORS: {
    severity: "error",
    meaning: "the SSD answers with errors again and again: it is left out, and tried at times",
    fix: "check the drive (smartctl -a, dmesg); it is used again once trials succeed",
  },
  KV_SSD_BUFFERED: {
    severity: "warn",
    meaning: "the file system of ssd_dir refuses O_DIRECT: blocks go through the page cache",
    fix: "put kv.ssd_dir on ext4 or XFS, and leave memory for the page cache until then",
  },
  KV_LIMITS: {
    severity: "warn",
    meaning: "a limit of this host denies io_uring or locked memory: it runs slower than it could",
    fix: "set LimitMEMLOCK=infinity and allow io_uring (sysctl kernel.io_uring_disabled, seccomp)",
  },
  KV_INDEX: {
    severity: "warn",
    meaning: "the index of what lies on SSD fails or had to be rebuilt; blocks are still served",
    fix: "check the file system of kv.index_dir: space, errors, permissions",
  },
  KV_HOLDS: {
    severity: "error",
    meaning: "pins and leases cannot be written down: a restart would forget the latest",
    fix: "check the file system of kv.index_dir: space, errors, permissions",
  },
  KV_PINS_RELIEVED: {
    severity: "warn",
    meaning: "pins took all room and the least valuable ones were ended in the last ten minutes",
    fix: "lower control.pin_share, pin less (hearth ctl pins), or give the tiers more room",
  },
  NATS_DOWN: {
    severity: "warn",
    meaning: "there is no connection to NATS: commands come over HTTP alone",
    fix: "check the server and nats.* in the configuration; it is tried again by itself",
  },
  NATS_STREAM: {
    severity: "error",
    meaning: "the stream of commands cannot be read: commands over NATS do not reach this worker",
    fix: "make the stream of nats.command_stream with this worker's subject, or permit the agent",
  },
  NATS_WORKERS: {
    severity: "warn",
    meaning: "the bucket of workers cannot be written: who sends by broadcast misses this worker",
    fix: "make the bucket of nats.workers_bucket, or let the agent write its key there",
  },
  PEERS_CERT: {
    severity: "warn",
    meaning: "this host's certificate for peers ends within 14 days",
    fix: "issue a new one (hearth ca issue) in place of peers.cert_file and peers.key_file",
  },
  PEERS_CERT_ENDED: {
    severity: "error",
    meaning: "this host's certificate for peers has ended: no host pulls from another here",
    fix: "issue a new one (hearth ca issue) in place of peers.cert_file and peers.key_file",
  },
  PEERS_FILES: {
    severity: "error",
    meaning: "new certificate files for peers were refused: those read before stay in use",
    fix: "see the text and `hearth ca show`, put files that belong together, send SIGHUP",
  },
  PEERS_DOWN: {
    severity: "warn",
    meaning: "no known peer can be reached: what only other hosts have is computed again",
    fix: "hearth ctl peers has each reason; check firewall, certificates and the other hosts",
  },
  PEERS_CORRUPT: {
    severity: "error",
    meaning: "a peer sent what it was not asked for in the last ten minutes; nobody saw it",
    fix: "hearth ctl events names it: check memory and drive of that host, and its version",
  },
  ROUTER_NATS: {
    severity: "warn",
    meaning: "there is no connection to NATS: what workers hold is as it was last heard",
    fix: "check the server and nats.* in the router's configuration; it is tried again by itself",
  },
  ROUTER_ENGINE: {
    severity: "warn",
    meaning: "engines or their KV events cannot be reached: their workers are stale",
    fix: "check workers.NAME.url and .events, and that engines run with --kv-events-config",
  },
  ROUTER_BLOCK_TOKENS: {
    severity: "error",
    meaning: "the blocks of an engine have another size than configured; the engine's is used",
    fix: "set workers.NAME.block_tokens to the engine's block size, or remove the key",
  },
  ROUTER_NO_WORKERS: {
    severity: "warn",
    meaning: "no worker is known: every request is refused",
    fix: "see that agents publish events, list workers in the file, or register them over HTTP",
  },
  ROUTER_WORKER_OUT: {
    severity: "warn",
    meaning:
      "workers do not answer health checks: the proxy leaves them out while others are there",
    fix: "look at the engine's log and process on that host; it is used again once it answers",
  },
  PROXY_TOKENS: {
    severity: "warn",
    meaning: "an engine counts other tokens in prompts than the proxy: cached prefixes are missed",
    fix: "give the model's table the engine's tokenizer, chat template and template kwargs",
  },
  FEED_ENGINE: {
    severity: "warn",
    meaning: "an engine's own events cannot be heard: what its GPU holds is as it was last told",
    fix: "check that the engine runs with --kv-events-config, and engine.kv_events",
  },
  FEED_BLOCK_TOKENS: {
    severity: "error",
    meaning: "the blocks of the engine have another size than configured; the engine's is used",
    fix: "set engine.kv_events_block_tokens to the engine's block size, or remove the key",
  },
  FEED_STREAM: {
    severity: "error",
    meaning: "the broker takes no events or snapshots of this host: late routers miss its blocks",
    fix: "make the stream and the bucket of [events], or permit the agent to write there",
  },
  GPU_DRIVER: {
    severity: "warn",
    meaning: "there is a GPU driver and it cannot be used: engines copy blocks for themselves",
    fix: "see the text, nvidia-smi and `hearth doctor`; then start the agent again",
  },
  GPU_LOST: {
    severity: "error",
    meaning: "a GPU was lost: copies to and from it fail until the agent is started again",
    fix: "find the cause (dmesg, Xid), reset or replace it, then restart its engines and the agent",
  },
  GPU_UNREGISTERED: {
    severity: "warn",
    meaning:
      "RAM is not registered with the GPU driver: copies hold up their thread and are slower",
    fix: "set LimitMEMLOCK=infinity in the unit, or gpu.register to false",
  },
  RDMA_MEMLOCK: {
    severity: "warn",
    meaning: "the memory that may be locked is too little for RDMA: peers use other transports",
    fix: "set LimitMEMLOCK=infinity (ulimit -l unlimited, --ulimit memlock=-1), then restart",
  },
  RDMA_DEVICE: {
    severity: "warn",
    meaning: "there is an RDMA device and it cannot be used: peers use other transports",
    fix: "see the text, ibv_devinfo and `hearth doctor`; then start the agent again",
  },
  RDMA_PORT_DOWN: {
    severity: "warn",
    meaning: "an RDMA port is not active: peers use other ports or transports",
    fix: "check cable, switch port and address (ibv_devinfo); it is used again by itself",
  },
  ENGINE_HOLDS_ALL: {
    severity: "warn",
    meaning: "one engine holds nearly all that it may of RAM or connections",
    fix: "see the process in the text; restart it, or raise engine.held_share, clients_per_process",
  },
  FD_LIMIT: {
    severity: "error",
    meaning: "file descriptors run out: connections wait, and files cannot be opened",
    fix: "raise LimitNOFILE (ulimit -n) or lower connections_max of [api] and [proxy]; restart",
  },
  KV_SSD_REPLACED: {
    severity: "error",
    meaning: "ssd_dir is no longer the folder that the agent opened: nothing is written to SSD",
    fix: "restart the agent to use the folder that is there now, or put the former one back",
  },
  AUDIT_LOG: {
    severity: "error",
    meaning: "the audit log cannot be written: commands are carried out without a record",
    fix: "check the folder of control.audit_file: space, permissions",
  },
  KV_RAM_HOLES: {
    severity: "error",
    meaning: "a process with the arena's descriptor gave memory of it back: blocks in it are lost",
    fix: "find and stop it (audit fallocate), restart the agent; see kv.huge_pages",
  },
  KV_RAM_SHORT: {
    severity: "error",
    meaning: "the RAM arena did not get all of its memory",
    fix: "free memory on this host or lower kv.ram_gib, then restart",
  },
} as const satisfies Record<string, HealthCodeSpec>;

export type HealthCode = keyof typeof HEALTH_CODES;

export const HEALTH_CODE_NAMES = Object.keys(HEALTH_CODES) as readonly HealthCode[];
