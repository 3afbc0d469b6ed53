import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { Clock } from "../core/index.ts";
import type { Rdma, RdmaOptions, RdmaPort, RdmaPortState, RdmaState } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import { absent, broken, counted, type Finding, usable, wrongPath } from "./probe.ts";

export interface HostRdmaOptions {
  readonly verbs: Omit<RdmaOptions, "onPort">;
  readonly clock: Clock;
  readonly health: Pick<Health, "raise" | "clear">;
  readonly log: (level: "info" | "warn", text: string, fields: Record<string, unknown>) => void;
  open(options: RdmaOptions): Rdma;
}

/** State of one RDMA port, as shown to operators. */
export interface RdmaPortReport {
  /** Device name and port number: `mlx5_0/1`. */
  readonly name: string;
  readonly state: RdmaPortState;
  readonly linkLayer: "infiniband" | "ethernet";
  /** Speed in Mbit/s. 0 if unknown. */
  readonly speed: number;
  readonly numaNode: number | null;
  readonly hasRelaxedOrdering: boolean;
  readonly hasDmaBuf: boolean;
  readonly finding: Finding;
}

export interface HostRdmaReport {
  readonly finding: Finding;
  readonly ports: readonly RdmaPortReport[];
}

/**
 * Milliseconds until inactive ports are polled again. The interval doubles after each poll, up to
 * `LOOK_MAX_MS`.
 */
const LOOK_MS = 1_000;
const LOOK_MAX_MS = 30_000;

/**
 * The RDMA devices of this host. Opens the verbs library once, then logs and reports changes of the
 * ports.
 */
export class HostRdma implements AsyncDisposable {
  readonly rdma: Rdma;
  readonly finding: Finding;
  readonly #options: HostRdmaOptions;
  readonly #wereActive = new Set<number>();
  /** State of each port when it was last logged, by port index. */
  readonly #logged = new Map<number, RdmaPortState>();
  #look: Disposable | null = null;
  #lookMs = LOOK_MS;
  #closed = false;

  constructor(options: HostRdmaOptions) {
    const { verbs, health, open } = options;
    this.#options = options;
    this.rdma = open({ ...verbs, onPort: () => this.#changed() });
    this.finding = rdmaFinding(this.rdma, this.rdma.ports(), verbs.library);
    if (this.finding.kind === "broken") {
      const { text, fix } = this.finding;
      const code = this.rdma.state === "memlock" ? "RDMA_MEMLOCK" : "RDMA_DEVICE";
      health.raise(code, `${text}: ${fix}`);
    }
    if (this.isUsable) this.#watch();
  }

  /** Returns whether an RDMA device was opened. Its ports may still be down. */
  get isUsable(): boolean {
    return this.finding.kind === "usable";
  }

  report(): HostRdmaReport {
    return { finding: this.finding, ports: this.rdma.ports().map(reportOf) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#look?.[Symbol.dispose]();
    await this.rdma[Symbol.asyncDispose]();
    this.#options.health.clear("RDMA_PORT_DOWN");
  }

  /** Handles a port event of the device: checks all ports at once. */
  #changed(): void {
    if (this.#closed || !this.isUsable) return;
    this.#lookMs = LOOK_MS;
    this.#watch();
  }

  /**
   * Reads the state of all ports, and polls while one is inactive: no event is reported when a port
   * gets a network address.
   */
  #watch(): void {
    this.#look?.[Symbol.dispose]();
    this.#look = null;
    const ports = this.rdma.ports();
    this.#tell(ports);
    if (ports.every(({ state }) => state === "active")) return;
    this.#look = this.#options.clock.after(this.#lookMs, () => this.#watch());
    this.#lookMs = Math.min(LOOK_MAX_MS, this.#lookMs * 2);
  }

  #tell(ports: readonly RdmaPort[]): void {
    for (const port of ports) {
      const { index, state } = port;
      if (state === "active") this.#wereActive.add(index);
      const before = this.#logged.get(index);
      this.#logged.set(index, state);
      if (before === undefined || before === state) continue;
      const { text } = portFinding(port);
      this.#options.log("info", "RDMA port state changed", { port: portName(port), state, text });
    }
    const { health } = this.#options;
    const missing = this.#missing(ports).map(portFinding);
    if (missing.length === 0) health.clear("RDMA_PORT_DOWN");
    else
      health.raise("RDMA_PORT_DOWN", missing.map(({ text, fix }) => `${text} (${fix})`).join("; "));
  }

  /**
   * Returns inactive ports that were active before, or all inactive ports if none was ever active.
   * A second port without a cable is normal.
   */
  #missing(ports: readonly RdmaPort[]): RdmaPort[] {
    const isMissed = ({ index }: RdmaPort) =>
      this.#wereActive.size === 0 || this.#wereActive.has(index);
    return ports.filter((port) => port.state !== "active" && isMissed(port));
  }
}

function reportOf(port: RdmaPort): RdmaPortReport {
  const { state, linkLayer, speed, numaNode, hasRelaxedOrdering, hasDmaBuf } = port;
  return {
    state,
    linkLayer,
    speed,
    numaNode,
    hasRelaxedOrdering,
    hasDmaBuf,
    name: portName(port),
    finding: portFinding(port),
  };
}

type Named = Pick<RdmaPort, "device" | "number" | "state" | "linkLayer" | "speed">;

/**
 * Converts the result of opening the verbs library to a message for operators. `library`: the
 * configured path, or null.
 */
export function rdmaFinding(
  { state, errno }: { readonly state: RdmaState; readonly errno: number },
  ports: readonly Named[],
  library: string | null = null,
): Finding {
  switch (state) {
    case "ready":
      return usable(portsText(ports));
    case "no_library":
      if (library !== null) return wrongPath("rdma.library", library);
      return absent(
        "libibverbs.so.1 not found: no RDMA on this host",
        "if the host has an RDMA NIC, install libibverbs1 and ibverbs-providers (rdma-core)",
      );
    case "no_device":
      return absent(
        "libibverbs.so.1 is installed, but lists no RDMA device",
        "with an RDMA NIC, load its module and ib_uverbs, pass in /dev/infiniband",
      );
    case "memlock":
      return broken(
        "RDMA devices exist, but the limit of locked memory is too low",
        "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited, or --ulimit memlock=-1",
      );
    case "not_permitted":
      return broken(
        `RDMA devices exist, but access to them is denied (errno ${errno})`,
        "let the agent's user open /dev/infiniband/uverbs* (DeviceAllow=, group rdma)",
      );
    case "too_old":
      return broken(
        "libibverbs.so.1 lacks required functions",
        "update rdma-core to release 32 or later",
      );
    case "failed":
      return broken(
        `RDMA devices exist, but cannot be opened (errno ${errno})`,
        "see ibv_devinfo and dmesg",
      );
    default:
      return state satisfies never;
  }
}

/** Formats a device name and port number: `mlx5_0/1`. */
export function portName({ device, number }: Pick<RdmaPort, "device" | "number">): string {
  return `${device}/${number}`;
}

/** Describes the state of one port, with a fix if the port is not active. */
export function portFinding(port: Named): Finding {
  const layer = port.linkLayer === "infiniband" ? "InfiniBand" : "Ethernet";
  const speed = port.speed === 0 ? "" : ` ${Math.round(port.speed / 1000)} Gb/s`;
  const name = `${portName(port)} ${layer}${speed}`;
  switch (port.state) {
    case "active":
      return usable(name);
    case "down":
      return broken(
        `${name} is down`,
        "check cable and switch port; ip link set DEVICE up, or a subnet manager",
      );
    case "no_address":
      return broken(
        `${name} has no usable address`,
        "give its network device an IP address, or name an entry in rdma.gid_index",
      );
    case "fatal":
      return broken(
        `${name} belongs to a device that failed`,
        "see dmesg, reset or replace the device, and restart the agent",
      );
    default:
      return port.state satisfies never;
  }
}

function portsText(ports: readonly Named[]): string {
  const active = ports.filter(({ state }) => state === "active").length;
  const names = ports.map((port) => portFinding(port).text).join(", ");
  return `${counted(ports.length, "RDMA port")}, ${active} active: ${names}`;
}

/** Returns the names of the RDMA devices that the kernel lists, sorted. Opens no device. */
export function kernelRdmaDevices(root = "/"): string[] {
  try {
    return readdirSync(join(root, "sys/class/infiniband")).sort();
  } catch (thrown) {
    if (thrown instanceof Error && "code" in thrown) return [];
    throw thrown;
  }
}
