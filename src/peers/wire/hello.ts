import { assert, isU64, type WorkerId } from "../../core/index.ts";
import type { HardwareReport, PeerHello } from "../messages.ts";
import { DEVICES_MAX, HardwareBit } from "./layout.ts";
import type { WireReader } from "./wire-reader.ts";
import type { WireWriter } from "./wire-writer.ts";

export function writeHello(writer: WireWriter, hello: PeerHello): void {
  const { hasRdmaNic, hasAes, cores, rdmaDevices } = hello.hardware;
  assert(isU64(hello.incarnation), "an incarnation has 64 bits");
  assert(rdmaDevices.length <= DEVICES_MAX, `at most ${DEVICES_MAX} RDMA devices are named`);
  writer.text(hello.worker).u64(hello.incarnation);
  writer.u8((hasRdmaNic ? HardwareBit.rdma : 0) | (hasAes ? HardwareBit.aes : 0));
  writer.u16(Math.min(cores, 0xffff)).u8(rdmaDevices.length);
  for (const device of rdmaDevices) writer.text(device);
}

export function readHello(reader: WireReader): PeerHello {
  const worker = reader.text("worker") as WorkerId;
  if (reader.ok && worker === "") reader.fail("worker: none is named");
  const incarnation = reader.u64("incarnation");
  return { worker, incarnation, hardware: readHardware(reader) };
}

function readHardware(reader: WireReader): HardwareReport {
  const bits = reader.u8("hardware");
  const known = HardwareBit.rdma | HardwareBit.aes;
  if (!reader.newer && (bits & ~known) !== 0) reader.fail("hardware: a bit that is not known here");
  const cores = reader.u16("cores");
  const count = reader.u8("devices");
  if (count > DEVICES_MAX) reader.fail(`devices: more than ${DEVICES_MAX}`);
  const rdmaDevices: string[] = [];
  for (let i = 0; i < count && reader.ok; i++) rdmaDevices.push(reader.text("device"));
  return {
    hasRdmaNic: (bits & HardwareBit.rdma) !== 0,
    rdmaDevices,
    cores,
    hasAes: (bits & HardwareBit.aes) !== 0,
  };
}
