import type { AgentSources } from "../api/index.ts";
import { mayUseRdma, wantsRdma } from "../config/index.ts";
import { HearthError, messageOf } from "../core/index.ts";
import {
  counted,
  type DirectFinding,
  type Finding,
  HostGpus,
  HostRdma,
  kernelRdmaDevices,
  probeDirect,
} from "../devices/index.ts";
import {
  type Gpus,
  type GpusOptions,
  openGpus,
  openRdma,
  type Rdma,
  type RdmaOptions,
} from "../native/index.ts";
import type { Logger } from "../observability/index.ts";
import type { AgentContext } from "./agent-context.ts";
import { DEVICES_STOP_MS, type ServiceManager } from "./process.ts";

/** Limits of RDMA resources. Peers normally need less. */
const RDMA_BOUNDS = {
  /** Maximum bytes of RAM readable by peers at one time. Only blocks being served are readable. */
  windowBytes: 2 ** 30,
  windowSpans: 16_384,
  linksMax: 1_024,
  readsMax: 16_384,
};

/**
 * Start timeout to request before drivers open. Discovery and opening each block the event loop for
 * up to one minute if a driver hangs.
 */
const OPENING_MS = 180_000;

export interface DevicesServiceParts
  extends Pick<AgentContext, "config" | "native" | "clock" | "logger" | "health" | "region"> {
  readonly service: Pick<ServiceManager, "starting">;
}

/** Owns the GPUs and NICs of this host. When disposal resolves, none of them accesses the arena. */
export class DevicesService implements AsyncDisposable {
  readonly #parts: DevicesServiceParts;
  readonly #gpus: HostGpus | null;
  readonly #rdma: HostRdma | null;
  #direct: readonly DirectFinding[] = [];

  private constructor(parts: DevicesServiceParts) {
    this.#parts = parts;
    parts.service.starting("opening devices", OPENING_MS);
    this.#gpus = openHostGpus(parts);
    this.#rdma = openHostRdma(parts);
  }

  /** Opens the devices. Throws UNSUPPORTED if a GPU is required and none is usable. */
  static open(parts: DevicesServiceParts): DevicesService {
    return new DevicesService(parts);
  }

  /** Usable GPUs. Null if GPUs are disabled or unusable; engines then copy blocks themselves. */
  get gpus(): Gpus | null {
    return this.#gpus?.usable ?? null;
  }

  /**
   * RDMA devices; their ports may be down. Null if peers or RDMA are disabled, or RDMA is unusable.
   */
  get rdma(): Rdma | null {
    return this.#rdma?.isUsable === true ? this.#rdma.rdma : null;
  }

  /**
   * NUMA node of each GPU, or of each NIC port if there are no GPUs. The arena is placed on these
   * nodes.
   */
  get nodes(): readonly (number | null)[] {
    const devices = this.gpus?.devices() ?? this.rdma?.ports() ?? [];
    return devices.map(({ numaNode }) => numaNode);
  }

  /** Returns reports on the devices, for status and metrics. */
  get sources(): AgentSources["devices"] {
    const gpu = this.#gpus?.report() ?? null;
    return { gpu, rdma: this.#rdma?.report() ?? null, direct: this.#direct };
  }

  /**
   * Tests whether NICs can access GPU memory. Call it before engines connect: a NIC that does not
   * answer blocks the event loop for seconds. Never rejects.
   */
  async tryDirect(): Promise<void> {
    const { config, native, logger, service } = this.#parts;
    const { gpus, rdma } = this;
    if (gpus === null || rdma === null) return;
    service.starting("testing NIC access to GPU memory", OPENING_MS);
    const libraries = { gpuLibrary: config.gpu.library, rdmaLibrary: config.rdma.library };
    try {
      this.#direct = await probeDirect(native, { ...libraries, ports: rdma.ports() });
    } catch (thrown) {
      logger.warn(`test of NIC access to GPU memory failed: ${messageOf(thrown)}`, {});
    }
    const works = this.#direct.filter(({ kind }) => kind === "usable");
    const first = this.#direct.find(({ kind }) => kind !== "usable");
    if (works.length > 0) {
      logger.info(`NICs access the memory of ${counted(works.length, "GPU")} by dma-buf`, {});
    }
    if (first !== undefined) {
      const { gpu, text, fix } = first;
      logger.info(`NIC access to GPU memory: ${text}`, { gpu, fix });
    }
  }

  /** Allows GPU copies to use the first `bytes` bytes of the arena, which are populated now. */
  ready(bytes: number): void {
    this.#gpus?.ready(bytes);
  }

  /**
   * Waits for copies in progress, then closes the devices. All users of the devices must have
   * stopped.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    const { clock, logger } = this.#parts;
    using _late = clock.after(DEVICES_STOP_MS, () =>
      logger.warn("devices still use RAM, waiting before it is released", {
        seconds: DEVICES_STOP_MS / 1_000,
      }),
    );
    try {
      await this.#rdma?.[Symbol.asyncDispose]();
    } finally {
      await this.#gpus?.[Symbol.asyncDispose]();
    }
  }
}

function openHostGpus({ config, native, region, health, logger }: DevicesServiceParts) {
  const { enabled, library } = config.gpu;
  if (enabled === "off") return null;
  const open = (options: GpusOptions) => openGpus(native, options);
  const gpus = new HostGpus({ region, library, health, open });
  logFinding(logger, "GPU", gpus.finding);
  if (enabled === "require" && gpus.usable === null) {
    const { text, fix } = gpus.finding;
    const instead = 'or set gpu.enabled to "auto"';
    throw new HearthError("UNSUPPORTED", text, {
      fix: fix === null ? instead : `${fix}, ${instead}`,
    });
  }
  return gpus;
}

/**
 * Opens the RDMA devices. Returns null unless peers are configured and unencrypted transfer is
 * allowed.
 */
function openHostRdma(parts: DevicesServiceParts): HostRdma | null {
  const { config, native, region, clock, health, logger } = parts;
  if (config.peers.certFile === null) return null;
  if (!mayUseRdma(config)) {
    logUnused(parts);
    return null;
  }
  const { library, devices: named, gidIndex } = config.rdma;
  const devices = named === "any" ? null : named;
  const host = new HostRdma({
    verbs: { region, library, devices, gidIndex, ...RDMA_BOUNDS },
    ...{ clock, health },
    log: (level, text, fields) => logger.log(level, text, fields),
    open: (options: RdmaOptions) => openRdma(native, options),
  });
  logFinding(logger, "RDMA", host.finding);
  return host;
}

/** Logs why an installed NIC is unused, unless `peers.transport` leaves RDMA out. */
function logUnused({ config, logger }: DevicesServiceParts): void {
  const devices = kernelRdmaDevices();
  if (!wantsRdma(config) || config.peers.trustedNetwork || devices.length === 0) return;
  const fix = "set peers.trusted_network if only these hosts are on their network";
  logger.info("RDMA not used: its transfers are not encrypted", {
    devices: devices.join(" "),
    fix,
  });
}

/** Logs one finding of the device checks. Faults are also reported as health codes. */
function logFinding(logger: Logger, what: string, { kind, text, fix }: Finding): void {
  if (kind === "usable") logger.info(`${what}: ${text}`, {});
  if (kind === "absent") logger.info(`${what} not used: ${text}`, { fix });
}
