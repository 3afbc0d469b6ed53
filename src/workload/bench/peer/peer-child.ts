import { availableParallelism } from "node:os";
import { stringifyJson, systemClock, unreachable } from "../../../core/index.ts";
import { type Native, openLanes, openRdma, type Rdma, Region } from "../../../native/index.ts";
import {
  createTrust,
  laneShape,
  QuicTransport,
  RdmaTransport,
  StreamTransport,
} from "../../../peers/index.ts";
import { linesOf } from "../lines.ts";
import { BareQuic } from "./bare-quic.ts";
import type { BenchSide, News, Order, Setup } from "./orders.ts";
import { TcpSide } from "./tcp-side.ts";
import { TransportSide } from "./transport-side.ts";

const MIB = 2 ** 20;
const MICROS = 1e6;
/** As the configuration has it by default. */
const READ_BYTES = 256 * 1024;
/** A link waits for its turn while others are measured. */
const IDLE_MS = 3_600_000;

/** One end of one carrier, in a process of its own, as its standard input says. */
export async function servePeerBench(native: Native): Promise<void> {
  const lines = linesOf(Bun.stdin.stream());
  const first = await lines.next();
  if (first.done) return;
  const setup = JSON.parse(first.value) as Setup;
  const region = Region.create(native, {
    bytes: setup.regionBytes,
    hugePages: "try",
    lockMemory: "off",
  });
  // Every page is there, and no two blocks are equal.
  region.fill(0, region.bytes, setup.role === "holder" ? 1n : 2n);
  await using stack = new AsyncDisposableStack();
  const side = stack.use(await sideOf(native, region, setup, stack));
  await say({ did: "start", port: side.port });
  for await (const line of lines) await obey(side, JSON.parse(line) as Order);
}

async function sideOf(
  native: Native,
  region: Region,
  setup: Setup,
  stack: AsyncDisposableStack,
): Promise<BenchSide> {
  const { carrier, role } = setup;
  switch (carrier) {
    case "tcp":
      return new TcpSide(native, region, role);
    case "stream":
    case "stream-plain":
      return TransportSide.start(streamOf(native, setup), region, role);
    case "rdma": {
      const rdma = stack.use(rdmaOf(native, region, setup));
      return TransportSide.start(rdmaTransport(rdma, setup), region, role);
    }
    case "quic":
      return TransportSide.start(quicOf(native, setup), region, role);
    case "bare-quic":
      return BareQuic.start(native, region, role, setup.credentials);
    default:
      return unreachable(carrier satisfies never, "a carrier");
  }
}

function quicOf(native: Native, { credentials }: Setup): QuicTransport {
  const trust = createTrust(credentials, systemClock);
  const limits = { idleMs: IDLE_MS };
  return new QuicTransport({ trust, clock: systemClock, log: () => {}, native, limits });
}

function streamOf(native: Native, { carrier, credentials, lanes }: Setup): StreamTransport {
  const { threads, socketBytes } = laneShape(availableParallelism());
  return new StreamTransport({
    trust: createTrust(credentials, systemClock),
    clock: systemClock,
    log: () => {},
    ciphers: carrier === "stream" ? ["aegis-128l"] : ["none"],
    openLanes: (region) => openLanes(native, { region, threads, socketBytes }),
    lanes,
    lanesPort: 0,
  });
}

function rdmaOf(native: Native, region: Region, { verbs: library }: Setup): Rdma {
  return openRdma(native, {
    ...{ region, library, devices: null, gidIndex: null, onPort: () => {} },
    ...{ windowBytes: region.bytes, windowSpans: 1_024, linksMax: 16, readsMax: 1_024 },
  });
}

function rdmaTransport(rdma: Rdma, { credentials }: Setup): RdmaTransport {
  const trust = createTrust(credentials, systemClock);
  const settings = { timeout: 14, retries: 6, trafficClass: 0, serviceLevel: 0 };
  return new RdmaTransport({
    ...{ trust, clock: systemClock, log: () => {}, rails: 1, rdmaOf: () => rdma },
    settings: { ...settings, pieceBytes: READ_BYTES },
  });
}

/** Resolves when it is written: what follows may block this process. */
function say(news: News): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.write(`${stringifyJson(news)}\n`, () => resolve());
  });
}

async function obey(side: BenchSide, order: Order): Promise<void> {
  switch (order.do) {
    case "prepare": {
      const { blockBytes, connections } = order;
      return side.prepare(blockBytes, connections, () => say({ did: "prepare" }));
    }
    case "dial":
      await side.dial(order.port);
      return say({ did: "dial" });
    case "pull":
      return say({ did: "pull", ...(await side.pull(order)) });
    case "tell": {
      const { user, system } = process.cpuUsage();
      const rssMb = process.memoryUsage.rss() / MIB;
      return say({ did: "tell", cpuSeconds: (user + system) / MICROS, rssMb });
    }
    default:
      return unreachable(order satisfies never, "an order");
  }
}
