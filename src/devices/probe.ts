import {
  type GpuDevice,
  type GpuOutcome,
  type GpusInfo,
  type Native,
  openGpus,
  openRdma,
  type RdmaOptions,
  type RdmaPort,
  type RdmaState,
  Region,
} from "../native/index.ts";

/** What a look at the GPUs came to; plain enough for JSON, like the look at the ports. */
export interface GpuProbe {
  /** Path that the configuration names, if it names one. */
  readonly library: string | null;
  readonly info: GpusInfo;
  readonly devices: readonly Omit<GpuDevice, "uuid">[];
  /** Whether memory could be registered; null where no GPU can be used. */
  readonly registered: GpuOutcome | null;
}

const TRIED_BYTES = 2 * 2 ** 20;
/** More than may be locked where nobody raised the limit: less would try nothing. */
const LOCKED_BYTES = 64 * 2 ** 20;

/** Opens the GPUs, registers a little memory, and closes all of it again. */
export async function probeGpus(native: Native, library: string | null): Promise<GpuProbe> {
  using region = Region.create(native, { bytes: TRIED_BYTES, hugePages: "off", lockMemory: "off" });
  await using gpus = openGpus(native, {
    ...{ region, library, jobsMax: 1, piecesMax: 1 },
    onLost: () => undefined,
  });
  const { info } = gpus;
  const registered = info.state === "ready" ? await gpus.register(0, TRIED_BYTES) : null;
  const devices = gpus.devices().map(({ uuid: _, ...device }) => device);
  return { library, info, devices, registered };
}

/** What a look at the RDMA devices came to. */
export interface RdmaProbe {
  /** Path that the configuration names, if it names one. */
  readonly library: string | null;
  readonly state: RdmaState;
  readonly errno: number;
  readonly ports: readonly Omit<RdmaPort, "gid">[];
}

/** Opens the RDMA devices, and closes them again. */
export async function probeRdma(
  native: Native,
  choice: Pick<RdmaOptions, "library" | "devices" | "gidIndex">,
): Promise<RdmaProbe> {
  using region = Region.create(native, {
    bytes: LOCKED_BYTES,
    hugePages: "off",
    lockMemory: "off",
  });
  await using rdma = openRdma(native, {
    ...{ ...choice, region, windowBytes: LOCKED_BYTES, windowSpans: 1, linksMax: 1, readsMax: 1 },
    onPort: () => undefined,
  });
  const ports = rdma.ports().map(({ gid: _, ...port }) => port);
  return { library: choice.library, state: rdma.state, errno: rdma.errno, ports };
}
