import {
  type Lent,
  type NativeBuffer,
  nativeBuffer,
  type Rdma,
  type RdmaAddress,
  type RdmaFault,
  type RdmaPort,
  type RdmaQueuePair,
  type RdmaRead,
  type RdmaWindow,
  type Region,
} from "../../../src/native/index.ts";

const SLICE_BYTES = 64 * 1024;

export const PORT: RdmaPort = {
  ...{ index: 0, device: "plain0", number: 1, state: "active", gidIndex: 1, isRoceV2: true },
  gid: Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1),
  ...{ lid: 0, linkLayer: "ethernet", mtu: 1024, readsOut: 16, readsIn: 16 },
  ...{ messageBytesMax: 2 ** 30, speed: 100_000, numaNode: null },
  ...{ hasRelaxedOrdering: false, hasDmaBuf: false },
};

/**
 * RDMA between regions of one process, without devices, for faults that devices do not have on
 * demand.
 */
export class PlainFabric {
  /** By queue pair. */
  readonly connections = new Map<number, PlainRdmaLink>();
  ports: readonly RdmaPort[] = [PORT];
  /** Called before each slice that is read. */
  onSlice: () => Promise<void> = () => new Promise((resolve) => setImmediate(resolve));
  /** The next this many exposures, and reads, are refused. */
  fullLoans = 0;
  fullReads = 0;
  /** Number of reads and exposures started so far. */
  reads = 0;
  loans = 0;
  nextPair = 1;
  nextKey = 1;

  open(region: Region): Rdma {
    const made: PlainRdmaLink[] = [];
    return {
      state: "ready",
      errno: 0,
      ports: () => this.ports,
      link: (port) => {
        const connection = new PlainRdmaLink(this, region, this.ports[port]!);
        made.push(connection);
        return connection;
      },
      [Symbol.asyncDispose]: async () => {
        for (const connection of made) connection.end("cancelled");
      },
    };
  }
}

interface Loan {
  readonly offset: number;
  readonly bytes: number;
  readonly key: number;
}

export class PlainRdmaLink implements RdmaQueuePair {
  readonly address: RdmaAddress;
  readonly ended: Promise<RdmaFault>;
  readonly port: RdmaPort;
  other: PlainRdmaLink | null = null;
  fault: RdmaFault | null = null;
  readonly #fabric: PlainFabric;
  readonly #region: Region;
  readonly #buffer: NativeBuffer = nativeBuffer(SLICE_BYTES);
  readonly #loans = new Map<number, Loan>();
  readonly #reads = new Map<number, { arrived: number; isCancelled: boolean }>();
  readonly #ending = Promise.withResolvers<RdmaFault>();
  #nextToken = 1;

  constructor(fabric: PlainFabric, region: Region, port: RdmaPort) {
    this.#fabric = fabric;
    this.#region = region;
    this.port = port;
    this.ended = this.#ending.promise;
    const { gid, lid, mtu, readsOut, readsIn } = port;
    const queuePair = fabric.nextPair++;
    this.address = { gid, queuePair, psn: 7, lid, mtu, readsOut, readsIn };
    fabric.connections.set(queuePair, this);
  }

  /** Number of exposed spans. */
  get lent(): number {
    return this.#loans.size;
  }

  /** Number of running reads. */
  get reading(): number {
    return this.#reads.size;
  }

  connect(other: RdmaAddress): void {
    this.other = this.#fabric.connections.get(other.queuePair) ?? null;
  }

  lend(offset: number, bytes: number): { readonly token: number; readonly lent: Promise<Lent> } {
    const token = this.#nextToken++;
    return { token, lent: this.#lend(token, offset, bytes) };
  }

  async #lend(token: number, offset: number, bytes: number): Promise<Lent> {
    this.#fabric.loans++;
    await new Promise((resolve) => setImmediate(resolve));
    if (this.fault !== null) return { ok: false, fault: this.fault };
    if (this.#fabric.fullLoans > 0) {
      this.#fabric.fullLoans--;
      return { ok: false, fault: "full" };
    }
    const key = this.#fabric.nextKey++;
    this.#loans.set(token, { offset, bytes, key });
    return { ok: true, window: { address: BigInt(offset) + 0x7000_0000_0000n, key } };
  }

  async takeBack(token: number): Promise<void> {
    this.#loans.delete(token);
  }

  /** The offset of an exposed span; null: it cannot be read. */
  spanAt({ address, key }: RdmaWindow, bytes: number): number | null {
    const loan = [...this.#loans.values()].find((one) => one.key === key);
    const offset = Number(address - 0x7000_0000_0000n);
    if (this.fault !== null || loan === undefined || offset < loan.offset) return null;
    return offset + bytes <= loan.offset + loan.bytes ? offset : null;
  }

  get region(): Region {
    return this.#region;
  }

  read(
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly token: number; readonly done: Promise<RdmaRead> } {
    const token = this.#nextToken++;
    this.#fabric.reads++;
    this.#reads.set(token, { arrived: 0, isCancelled: false });
    const done = this.#read(token, window, offset, bytes).finally(() => this.#reads.delete(token));
    return { token, done };
  }

  async #read(token: number, window: RdmaWindow, offset: number, bytes: number): Promise<RdmaRead> {
    const reading = this.#reads.get(token)!;
    if (this.#fabric.fullReads > 0) {
      this.#fabric.fullReads--;
      return { ok: false, fault: "full" };
    }
    for (let at = 0; at < bytes; at += SLICE_BYTES) {
      // Like a device: a read ends with its queue pair, whatever it waits for.
      await Promise.race([this.#fabric.onSlice(), this.ended]);
      if (this.fault !== null) return { ok: false, fault: this.fault };
      if (reading.isCancelled) return { ok: false, fault: "cancelled" };
      const slice = Math.min(SLICE_BYTES, bytes - at);
      const there = this.other?.spanAt({ ...window, address: window.address + BigInt(at) }, slice);
      if (there === null || there === undefined) {
        this.other?.end("broken");
        this.end("broken");
        return { ok: false, fault: "broken" };
      }
      this.other!.region.copyOut(there, this.#buffer, slice, false);
      this.#region.copyIn(offset + at, this.#buffer, slice, false);
      reading.arrived += slice;
    }
    return { ok: true, checksum: this.#region.checksum(offset, bytes) };
  }

  cancel(token: number): void {
    const reading = this.#reads.get(token);
    if (reading !== undefined) reading.isCancelled = true;
  }

  arrived(token: number): number {
    return this.#reads.get(token)?.arrived ?? 0;
  }

  end(fault: RdmaFault): void {
    if (this.fault !== null) return;
    this.fault = fault;
    this.#loans.clear();
    this.#ending.resolve(fault);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.end("cancelled");
    while (this.#reads.size > 0) await new Promise((resolve) => setImmediate(resolve));
  }
}
