/**
 * An engine's part, in a process of its own: memory of the device with known bytes, lent by handle
 * and by descriptor (over the socket that is descriptor 3). Each line on standard input makes it
 * say where its memories first differ from what the other process should have written.
 */
import { type GpuMemory, loadNative, openGpus, Region } from "../../src/native/index.ts";

export const LENT_BYTES = 4 * 2 ** 20;
export const LENT_SEED = 11n;
export const ANSWER_SEED = 12n;

export interface Lent {
  /** In hexadecimal. */
  readonly handle: string;
  readonly offset: number;
  /** Whether a descriptor comes: not every device can lend so. */
  readonly hasDescriptor: boolean;
}

const ALL = [{ regionOffset: 0, memoryOffset: 0, bytes: LENT_BYTES }];
const SOCKET = 3;

async function main(library: string): Promise<void> {
  const native = loadNative();
  const region = Region.create(native, {
    bytes: LENT_BYTES,
    hugePages: "off",
    lockMemory: "off",
  });
  const gpus = openGpus(native, {
    region,
    library,
    jobsMax: 16,
    piecesMax: 16,
    onLost: () => undefined,
  });
  const memories: GpuMemory[] = [];
  for (const exportable of [false, true]) {
    const opened = await gpus.allocate(0, LENT_BYTES, { exportable });
    if (!opened.ok) continue;
    region.fill(0, LENT_BYTES, LENT_SEED);
    await gpus.toGpu(opened.memory, ALL);
    memories.push(opened.memory);
  }
  const [first, second] = memories;
  const lent = await gpus.exportIpc(first!);
  if (!lent.ok) throw new Error(`not exported: ${lent.status} ${lent.code}`);
  const exported = second === undefined ? null : await gpus.exportFd(second);
  const hasDescriptor = exported?.ok === true;
  if (exported?.ok) native.sendFd(SOCKET, new Uint8Array([1]), exported.fd);
  const said: Lent = { handle: lent.handle.toHex(), offset: lent.offset, hasDescriptor };
  console.log(JSON.stringify(said));
  for await (const _ of Bun.stdin.stream()) {
    const wrong: (number | null)[] = [];
    for (const memory of memories) {
      region.fill(0, LENT_BYTES, 0n);
      await gpus.fromGpu(memory, ALL);
      wrong.push(region.firstWrong(0, LENT_BYTES, ANSWER_SEED));
    }
    console.log(JSON.stringify(wrong));
  }
}

if (import.meta.main) await main(process.argv[2]!);
