import { choiceKind, integerKind, pathKind, sizeKind } from "../kinds.ts";
import { rdmaDevicesKind } from "../peer-kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const PAGE_BYTES = 4096;
const MIB = 2 ** 20;

const enabled = withDefault({
  key: "enabled",
  kind: choiceKind(["auto", "off"]),
  standard: "auto",
  reload: false,
  doc:
    "Whether blocks go between hosts by RDMA. `auto` does it where both have a device that works " +
    "and `peers.trusted_network` is set, since what is read goes over the network in the clear; " +
    "`off` opens no device.",
});

const library = optional({
  key: "library",
  kind: pathKind({ bytesMax: 4095, example: "/usr/lib64/libibverbs.so.1" }),
  reload: false,
  doc: "The verbs' library, where the dynamic linker does not find `libibverbs.so.1` by itself.",
  example: "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
});

const devices = withDefault({
  key: "devices",
  kind: rdmaDevicesKind,
  standard: "any",
  reload: false,
  doc:
    "Devices that may be used, by the names that `ibv_devices` shows, with commas between them. " +
    "Leave out those on networks for something else, such as storage.",
});

const gidIndex = optional({
  key: "gid_index",
  kind: integerKind({ min: 0, max: 255 }),
  reload: false,
  doc:
    "Which of a port's addresses is used. Unset: RoCE v2 before others, and never one that is " +
    "good within one network alone.",
  example: 3,
});

const rails = withDefault({
  key: "rails",
  kind: integerKind({ min: 1, max: 8 }),
  standard: 1,
  reload: false,
  doc:
    "Ports that one peer's blocks are read over at the same time, each of a network that the " +
    "peer has a port in, too. Peers are spread over all ports in any case.",
});

const trafficClass = withDefault({
  key: "traffic_class",
  kind: integerKind({ min: 0, max: 255 }),
  standard: 0,
  reload: false,
  doc:
    "Traffic class of what is sent, DSCP in its upper six bits: that of the lossless class, " +
    "where the network has one (often 106).",
});

const serviceLevel = withDefault({
  key: "service_level",
  kind: integerKind({ min: 0, max: 15 }),
  standard: 0,
  reload: false,
  doc: "Service level of what is sent: on InfiniBand the subnet manager gives it a meaning.",
});

const timeout = withDefault({
  key: "timeout",
  kind: integerKind({ min: 8, max: 20 }),
  standard: 14,
  reload: false,
  doc:
    "After 4.096 us times two to the power of this a packet that was not answered is sent again: " +
    "14 are 67 ms. Devices wait up to four times as long.",
});

const retries = withDefault({
  key: "retries",
  kind: integerKind({ min: 1, max: 6 }),
  standard: 6,
  reload: false,
  doc: "How often it is sent again before the peer counts as gone.",
});

const readBytes = withDefault({
  key: "read_bytes",
  kind: sizeKind({ min: 64 * 1024, max: 16 * MIB, multiple: PAGE_BYTES, example: "256KiB" }),
  standard: "256KiB",
  reload: false,
  doc: "One read asks for so much of a block at most; a longer block takes several.",
});

const windowBytes = withDefault({
  key: "window_bytes",
  kind: sizeKind({ min: 64 * MIB, max: 2 ** 40, example: "1GiB" }),
  standard: "1GiB",
  reload: false,
  doc:
    "Bytes of RAM that peers can read at a time: the blocks that are lent to them just then, and " +
    "nothing beside. Where it is full they are told to come again, and a longer block never goes " +
    "this way; see `peers.serve_bytes_max`.",
});

export const rdmaSection = section("Blocks between hosts by RDMA; see `peers.listen_rdma`.", {
  enabled,
  library,
  devices,
  gidIndex,
  rails,
  trafficClass,
  serviceLevel,
  timeout,
  retries,
  readBytes,
  windowBytes,
});
