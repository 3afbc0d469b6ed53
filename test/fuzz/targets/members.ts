import { type Random, randomBelow } from "../../../src/core/index.ts";
import {
  ANNOUNCED_NAMESPACES_MAX,
  ANNOUNCEMENT_BYTES_MAX,
  encodeAnnouncement,
  KnownPeers,
  readAnnouncement,
} from "../../../src/peers/directory/index.ts";
import { announcementOf } from "../../peers/directory/announcements.ts";
import { ManualClock } from "../../support/index.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { bytesOf, oneOf } from "./text-input.ts";

const ANNOUNCED_MAX = 8;
const VALUES = [
  "null",
  "true",
  "-1",
  "1e400",
  "18446744073709551616",
  '""',
  '"a.b"',
  '"18446744073709551615"',
  '"gpu-02"',
  '"\\ud800"',
  '"here"',
  '"bye"',
  "[]",
  "{}",
  "[[[]]]",
  '{"host":"10.0.0.2","port":7172}',
  '{"stream":{"host":"::1","port":65535}}',
  '{"rdma_devices":[],"cores":1,"aes":false}',
  '{"__proto__":{"port":1}}',
];
const NAMES = [
  ...["version", "kind", "cluster", "worker_id", "incarnation", "every_ms", "endpoints"],
  ...["hardware", "namespaces", "__proto__", "toString", "x"],
];

function generate(random: Random): Uint8Array {
  const said = announcementOf(oneOf(["a", "b", "c", "self"], random), {
    kind: oneOf(["here", "hello", "bye"] as const, random),
    incarnation: BigInt(1 + randomBelow(random, 3)),
  });
  const text = Buffer.from(encodeAnnouncement(said)).toString();
  const count = randomBelow(random, 4);
  const others = Array.from(
    { length: count },
    () => `,"${oneOf(NAMES, random)}":${oneOf(VALUES, random)}`,
  );
  return bytesOf(text.replace(/\}$/, `${others.join("")}}`));
}

/** What hosts say of themselves, from whoever may publish there. */
export function members(): Target {
  const clock = new ManualClock();
  const known = new KnownPeers({ self: "self" as never, clock, announcedMax: ANNOUNCED_MAX });
  return {
    name: "members",
    corpus: [
      encodeAnnouncement(announcementOf("a")),
      encodeAnnouncement(announcementOf("b", { kind: "bye", endpoints: {}, namespaces: null })),
      encodeAnnouncement(announcementOf("c", { kind: "hello", namespaces: [] })),
    ],
    generate,
    run(input, saw) {
      const read = readAnnouncement(input);
      if (!read.ok) return saw(shapeOf(read.why));
      const { announcement } = read;
      saw(`${announcement.kind} ${Object.keys(announcement.endpoints).join(" ")}`);
      must(input.length <= ANNOUNCEMENT_BYTES_MAX, "a message is bounded");
      const { namespaces, hardware } = announcement;
      must((namespaces?.length ?? 0) <= ANNOUNCED_NAMESPACES_MAX, "namespaces are bounded");
      must(hardware.hasRdmaNic === hardware.rdmaDevices.length > 0, "devices are what there are");
      const again = readAnnouncement(encodeAnnouncement(announcement));
      must(again.ok && Bun.deepEquals(again.announcement, announcement), "it reads back");
      if (announcement.kind === "bye") known.left(announcement);
      else known.heard(announcement);
      must(known.list().length <= ANNOUNCED_MAX, "members are bounded");
      must(known.get("self" as never) === null, "nobody is its own peer");
    },
    settle() {
      clock.advance(1_000_000);
      must(known.list().length === 0, "whoever is silent is forgotten");
    },
    close: async () => known[Symbol.dispose](),
  };
}
