import type { Clock } from "../core/index.ts";
import type { Logger } from "./logger.ts";

/** A problem of this process that is current. */
export interface HealthProblem {
  readonly code: HealthCode;
  readonly severity: "warn" | "error";
  /** Time at which the problem began, in monotonic ms. */
  readonly sinceMs: number;
  /** Describes the problem in general. The text is the same for every occurrence of the code. */
  readonly meaning: string;
  /** Describes this occurrence: paths, counts, the kernel's message. */
  readonly details: string;
  readonly fix: string;
}

export interface HealthCount {
  readonly code: HealthCode;
  readonly isRaised: boolean;
  /**
   * Number of times the problem has begun since the process started. Raising a current problem
   * again does not count.
   */
  readonly raised: number;
}

export interface RaiseOptions {
  /**
   * Ms after which the problem ends if it is not raised again. Without it, only `clear` ends the
   * problem.
   */
  readonly forMs?: number;
}

export interface HealthOptions {
  readonly clock: Clock;
  readonly log: Pick<Logger, "log">;
}

const SEVERITIES = ["error", "warn"];

/**
 * Current problems of this process, by code. Components raise and clear problems. The beginning and
 * the end of each problem are logged, and its beginnings are counted.
 */
export class Health implements Disposable {
  readonly #clock: Clock;
  readonly #log: Pick<Logger, "log">;
  readonly #problems = new Map<HealthCode, HealthProblem>();
  readonly #ends = new Map<HealthCode, Disposable>();
  readonly #raised = new Map<HealthCode, number>();

  constructor({ clock, log }: HealthOptions) {
    this.#clock = clock;
    this.#log = log;
  }

  /**
   * Raises a problem. If it is already current, changes only its details and the time at which it
   * ends.
   */
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
    this.#log.log("info", "health problem resolved", { code, seconds });
  }

  /** Raises the problem with these details, or clears it if `details` is null. */
  report(code: HealthCode, details: string | null): void {
    if (details === null) this.clear(code);
    else this.raise(code, details);
  }

  isRaised(code: HealthCode): boolean {
    return this.#problems.has(code);
  }

  /** Returns the current problems: errors first; with equal severity, the oldest first. */
  list(): HealthProblem[] {
    const rank = ({ severity }: HealthProblem) => SEVERITIES.indexOf(severity);
    return [...this.#problems.values()].sort((a, b) => rank(a) - rank(b) || a.sinceMs - b.sinceMs);
  }

  /** Returns the number of occurrences of every code. */
  counts(): HealthCount[] {
    return HEALTH_CODE_NAMES.map((code) => ({
      code,
      isRaised: this.#problems.has(code),
      raised: this.#raised.get(code) ?? 0,
    }));
  }

  /** Stops all timers. */
  [Symbol.dispose](): void {
    for (const code of this.#ends.keys()) this.#stopTimer(code);
  }

  #stopTimer(code: HealthCode): void {
    this.#ends.get(code)?.[Symbol.dispose]();
    this.#ends.delete(code);
  }
}

export interface HealthCodeSpec {
  /**
   * `error`: blocks are lost or at risk until an operator acts. `warn`: the process is slower, or a
   * cache smaller, than configured.
   */
  readonly severity: "warn" | "error";
  /** Describes the problem, as a clause without a final period. */
  readonly meaning: string;
  /** The action that an operator should take. */
  readonly fix: string;
}

/**
 * Codes of problems of a running process. Codes are stable: log lines, metrics and HTTP replies
 * contain them, and `hearth reference health` prints this table. No problem makes the agent
 * unready, because even a degraded cache serves requests.
 */
export const HEALTH_CODES = {
  KV_SSD_CSUM: {
    severity: "error",
    meaning: "blocks read from SSD failed their checksum; they were quarantined and not served",
    fix: "check the drive (smartctl -a, dmesg) and replace it if this recurs; RAM is not affected",
  },
  KV_RAM_CSUM: {
    severity: "error",
    meaning: "blocks in RAM failed their checksum; they were dropped and will be stored again",
    fix:
      "look for ECC errors (edac-util, dmesg, IPMI) and replace the DIMM; the drive is not " +
      "affected",
  },
  KV_SSD_FULL: {
    severity: "warn",
    meaning: "the file system of ssd_dir is full: no more blocks are written",
    fix: "free space on it, or lower kv.ssd_gib; writing resumes automatically",
  },
  KV_SSD_READ_ONLY: {
    severity: "error",
    meaning: "the file system of ssd_dir is read-only: no blocks are written or deleted",
    fix: "find the cause (dmesg) and remount it for writing; writing resumes automatically",
  },
  KV_SSD_SLOW: {
    severity: "warn",
    meaning: "reads from SSD exceed their deadline and count as misses",
    fix: "check what else uses the drive (iostat -x); lower kv.scrub_rate",
  },
  KV_SSD_HUNG: {
    severity: "error",
    meaning: "the SSD does not respond: only RAM serves until it does",
    fix: "check the drive and its controller (dmesg); the agent uses it again once it responds",
  },
  KV_SSD_ERRORS: {
    severity: "error",
    meaning: "the SSD keeps failing: the agent does not use it, except for periodic trials",
    fix: "check the drive (smartctl -a, dmesg); the agent uses it again once trials succeed",
  },
  KV_SSD_BUFFERED: {
    severity: "warn",
    meaning: "the file system of ssd_dir refuses O_DIRECT: blocks go through the page cache",
    fix: "put kv.ssd_dir on ext4 or XFS, and leave memory for the page cache until then",
  },
  KV_LIMITS: {
    severity: "warn",
    meaning:
      "a limit of this host denies io_uring or locked memory: I/O is slower than it could be",
    fix: "set LimitMEMLOCK=infinity and allow io_uring (sysctl kernel.io_uring_disabled, seccomp)",
  },
  KV_INDEX: {
    severity: "warn",
    meaning: "the index of blocks on SSD fails or had to be rebuilt; blocks are still served",
    fix: "check the file system of kv.index_dir: space, errors, permissions",
  },
  KV_HOLDS: {
    severity: "error",
    meaning: "pins and leases cannot be persisted: a restart loses the latest changes",
    fix: "check the file system of kv.index_dir: space, errors, permissions",
  },
  KV_PINS_RELIEVED: {
    severity: "warn",
    meaning: "pins left no room and the least valuable ones were evicted in the last ten minutes",
    fix: "lower control.pin_share, pin less (hearth ctl pins), or give the tiers more room",
  },
  NATS_DOWN: {
    severity: "warn",
    meaning: "no connection to NATS: commands arrive over HTTP only",
    fix: "check the server and nats.* in the configuration; the agent reconnects automatically",
  },
  NATS_STREAM: {
    severity: "error",
    meaning: "the command stream cannot be read: commands over NATS do not reach this worker",
    fix:
      "create the stream of nats.command_stream with this worker's subject, or permit the " +
      "agent to",
  },
  NATS_WORKERS: {
    severity: "warn",
    meaning: "the workers bucket cannot be written: clients that broadcast miss this worker",
    fix: "create the bucket of nats.workers_bucket, or permit the agent to write its key",
  },
  PEERS_CERT: {
    severity: "warn",
    meaning: "this host's peer certificate expires within 14 days",
    fix: "issue a new one (hearth ca issue) in place of peers.cert_file and peers.key_file",
  },
  PEERS_CERT_ENDED: {
    severity: "error",
    meaning: "this host's peer certificate has expired: this host and its peers exchange no blocks",
    fix: "issue a new one (hearth ca issue) in place of peers.cert_file and peers.key_file",
  },
  PEERS_FILES: {
    severity: "error",
    meaning: "new peer certificate files were rejected: the previous ones stay in use",
    fix: "see the details and `hearth ca show`, install matching files, send SIGHUP",
  },
  PEERS_DOWN: {
    severity: "warn",
    meaning: "no known peer is reachable: blocks that only other hosts have are recomputed",
    fix: "run hearth ctl peers for the reasons; check firewall, certificates and the other hosts",
  },
  PEERS_CORRUPT: {
    severity: "error",
    meaning: "a peer sent wrong data in the last ten minutes; the data was discarded",
    fix: "run hearth ctl events for its name; check that host's memory, drive and version",
  },
  ROUTER_NATS: {
    severity: "warn",
    meaning: "no connection to NATS: the index of workers' blocks is not updated",
    fix:
      "check the server and nats.* in the router's configuration; the router reconnects " +
      "automatically",
  },
  ROUTER_ENGINE: {
    severity: "warn",
    meaning: "engines or their KV events are unreachable: their workers are stale",
    fix: "check workers.NAME.url and .events, and that engines run with --kv-events-config",
  },
  ROUTER_BLOCK_TOKENS: {
    severity: "error",
    meaning: "an engine's block size differs from the configured one; the engine's is used",
    fix: "set workers.NAME.block_tokens to the engine's block size, or remove the key",
  },
  ROUTER_NO_WORKERS: {
    severity: "warn",
    meaning: "no worker is known: all requests are refused",
    fix: "make agents publish events, list workers in the file, or register them over HTTP",
  },
  ROUTER_WORKER_OUT: {
    severity: "warn",
    meaning:
      "workers do not answer health checks: the proxy avoids them while others are available",
    fix: "check the engine's log and process on that host; the proxy uses it again once it answers",
  },
  PROXY_TOKENS: {
    severity: "warn",
    meaning:
      "an engine's token counts of prompts differ from the proxy's: cached prefixes are missed",
    fix: "give the model's table the engine's tokenizer, chat template and template kwargs",
  },
  FEED_ENGINE: {
    severity: "warn",
    meaning: "an engine's KV events are not received: the state of its GPU blocks is outdated",
    fix: "check that the engine runs with --kv-events-config, and engine.kv_events",
  },
  FEED_BLOCK_TOKENS: {
    severity: "error",
    meaning: "the engine's block size differs from the configured one; the engine's is used",
    fix: "set engine.kv_events_block_tokens to the engine's block size, or remove the key",
  },
  FEED_STREAM: {
    severity: "error",
    meaning:
      "the broker does not accept this host's events or snapshots: late routers miss its blocks",
    fix: "create the stream and the bucket of [events], or permit the agent to write there",
  },
  GPU_DRIVER: {
    severity: "warn",
    meaning: "the GPU driver cannot be used: engines copy blocks themselves",
    fix: "see the details, nvidia-smi and `hearth doctor`; then restart the agent",
  },
  GPU_LOST: {
    severity: "error",
    meaning: "a GPU was lost: copies to and from it fail until the agent restarts",
    fix: "find the cause (dmesg, Xid), reset or replace it, then restart its engines and the agent",
  },
  GPU_UNREGISTERED: {
    severity: "warn",
    meaning: "RAM is not registered with the GPU driver: copies are slower and block their thread",
    fix: "set LimitMEMLOCK=infinity in the unit",
  },
  RDMA_MEMLOCK: {
    severity: "warn",
    meaning: "the locked-memory limit is too low for RDMA: peers use other transports",
    fix: "set LimitMEMLOCK=infinity (ulimit -l unlimited, --ulimit memlock=-1), then restart",
  },
  RDMA_DEVICE: {
    severity: "warn",
    meaning: "an RDMA device cannot be used: peers use other transports",
    fix: "see the details, ibv_devinfo and `hearth doctor`; then restart the agent",
  },
  RDMA_PORT_DOWN: {
    severity: "warn",
    meaning: "an RDMA port is not active: peers use other ports or transports",
    fix:
      "check cable, switch port and address (ibv_devinfo); the agent uses it again " +
      "automatically",
  },
  ENGINE_HOLDS_ALL: {
    severity: "warn",
    meaning: "one engine is close to its limit of RAM or connections",
    fix: "restart the process in the details, or raise kv.ram_gib, engine.clients_max",
  },
  FD_LIMIT: {
    severity: "error",
    meaning: "file descriptors are running out: connections wait, and files cannot be opened",
    fix: "raise LimitNOFILE (ulimit -n) or lower engine.clients_max or proxy.streams_max; restart",
  },
  KV_SSD_REPLACED: {
    severity: "error",
    meaning: "ssd_dir was replaced since the agent opened it: no blocks are written to SSD",
    fix: "restart the agent to use the current directory, or restore the former one",
  },
  AUDIT_LOG: {
    severity: "error",
    meaning: "the audit log cannot be written: commands are carried out without a record",
    fix: "check the directory of control.audit_file: space, permissions",
  },
  KV_RAM_HOLES: {
    severity: "error",
    meaning:
      "a process with the arena's descriptor released part of its memory: blocks in it are lost",
    fix: "find and stop it (audit fallocate), restart the agent; see kv.huge_pages",
  },
  KV_RAM_SHORT: {
    severity: "error",
    meaning: "the RAM arena did not obtain all of its memory",
    fix: "free memory on this host or lower kv.ram_gib, then restart",
  },
} as const satisfies Record<string, HealthCodeSpec>;

export type HealthCode = keyof typeof HEALTH_CODES;

export const HEALTH_CODE_NAMES = Object.keys(HEALTH_CODES) as readonly HealthCode[];

/** Returns the reference page of health codes in Markdown. */
export function renderHealthReference(): string {
  const lines = [
    "# Health",
    "",
    "Problems that a running process can have. `GET /v1/status` lists the current ones",
    "with their details, `GET /healthz` only the codes; `hearth_health{code}` is 1",
    "while a problem lasts, and the log records its start and end. Codes are stable. None of them",
    "makes `/readyz` fail: engines are still served.",
    "",
    "| code | severity | meaning | what to do |",
    "|---|---|---|---|",
    ...HEALTH_CODE_NAMES.map((code) => {
      const { severity, meaning, fix } = HEALTH_CODES[code];
      return `| \`${code}\` | ${severity} | ${meaning} | ${fix} |`;
    }),
  ];
  return `${lines.join("\n")}\n`;
}
