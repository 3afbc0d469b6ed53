import { describe, expect, test } from "bun:test";
import {
  ANNOUNCED_NAMESPACES_MAX,
  ANNOUNCEMENT_BYTES_MAX,
  announcementSubject,
  encodeAnnouncement,
  readAnnouncement,
} from "../../../src/peers/directory/index.ts";
import { announcementOf } from "./announcements.ts";

const GOOD = JSON.parse(Buffer.from(encodeAnnouncement(announcementOf("a"))).toString());

function refused(change: object): string {
  const read = readAnnouncement(Buffer.from(JSON.stringify({ ...GOOD, ...change })));
  return read.ok ? "was taken" : read.why;
}

describe("an announcement", () => {
  test("a decoded announcement equals the encoded one", () => {
    const said = announcementOf("gpu-02", { incarnation: 2n ** 64n - 1n, namespaces: [] });
    expect(readAnnouncement(encodeAnnouncement(said))).toEqual({ ok: true, announcement: said });
    const bye = announcementOf("gpu-02", { kind: "bye", endpoints: {} });
    expect(readAnnouncement(encodeAnnouncement(bye))).toEqual({ ok: true, announcement: bye });
  });

  test("an announcement has exactly this text", () => {
    expect(Buffer.from(encodeAnnouncement(announcementOf("gpu-02"))).toString()).toBe(
      '{"version":1,"kind":"here","cluster":"hearth","worker_id":"gpu-02","incarnation":"1",' +
        '"every_ms":1000,"endpoints":{"stream":{"host":"10.0.0.2","port":7172},' +
        '"quic":{"host":"10.0.0.2","port":7173}},"hardware":{"rdma_devices":["mlx5_0"],' +
        `"cores":64,"aes":true},"namespaces":["${"ab".repeat(32)}"]}`,
    );
  });

  test("an announcement with too many namespaces lists none, which means any", () => {
    const namespaces = Array.from({ length: ANNOUNCED_NAMESPACES_MAX + 1 }, (_, i) =>
      i.toString(16).padStart(64, "0"),
    );
    const encoded = encodeAnnouncement(announcementOf("a", { namespaces }));
    expect(readAnnouncement(encoded)).toMatchObject({ announcement: { namespaces: null } });
    const most = namespaces.slice(1);
    const full = encodeAnnouncement(announcementOf("a", { namespaces: most }));
    expect(full.length).toBeLessThan(ANNOUNCEMENT_BYTES_MAX);
    expect(readAnnouncement(full)).toMatchObject({ announcement: { namespaces: most } });
  });

  test("known members of a later version's announcement are read", () => {
    const later = { ...GOOD, version: 2, color: "red", endpoints: { ...GOOD.endpoints, warp: 1 } };
    const read = readAnnouncement(Buffer.from(JSON.stringify(later)));
    expect(read).toEqual({ ok: true, announcement: announcementOf("a") });
  });

  test("an invalid announcement is refused with a reason", () => {
    expect(refused({ kind: "hi" })).toContain("kind");
    expect(refused({ version: 0 })).toContain("version");
    expect(refused({ cluster: 7 })).toContain("cluster");
    expect(refused({ worker_id: "a.b" })).toContain("worker_id");
    expect(refused({ worker_id: "a>" })).toContain("worker_id");
    expect(refused({ every_ms: 0 })).toContain("every_ms");
    expect(refused({ every_ms: 1e9 })).toContain("every_ms");
    expect(refused({ incarnation: 5 })).toContain("incarnation");
    expect(refused({ incarnation: "0" })).toContain("incarnation");
    expect(refused({ incarnation: "99999999999999999999" })).toContain("incarnation");
    expect(refused({ endpoints: [] })).toContain("missing");
    expect(refused({ endpoints: { stream: { host: "a b", port: 1 } } })).toContain("host");
    expect(refused({ endpoints: { quic: { host: "10.0.0", port: 1 } } })).toContain("host");
    expect(refused({ endpoints: { quic: { host: "a", port: 0 } } })).toContain("port");
    expect(refused({ hardware: null })).toContain("missing");
    expect(refused({ hardware: { rdma_devices: ["../x"], cores: 1, aes: true } })).toContain(
      "RDMA",
    );
    expect(
      refused({ hardware: { rdma_devices: Array(17).fill("m"), cores: 1, aes: true } }),
    ).toContain("rdma_devices");
    expect(refused({ hardware: { rdma_devices: [], cores: 0, aes: true } })).toContain("cores");
    expect(refused({ namespaces: ["AB".repeat(32)] })).toContain("namespace");
    expect(refused({ namespaces: Array(257).fill("ab".repeat(32)) })).toContain("too long");
  });

  test("an announcement that is not JSON, too deep or too long is refused before parsing", () => {
    expect(readAnnouncement(Buffer.from("{"))).toEqual({ ok: false, why: "invalid JSON" });
    expect(readAnnouncement(Buffer.from("[".repeat(2_000))).ok).toBe(false);
    expect(readAnnouncement(new Uint8Array([0xff, 0xfe])).ok).toBe(false);
    const long = new Uint8Array(ANNOUNCEMENT_BYTES_MAX + 1).fill(0x20);
    expect(readAnnouncement(long)).toEqual({ ok: false, why: "message too long" });
  });

  test("the subject depends on the cluster", () => {
    expect(announcementSubject("hearth")).toBe("kv-peers-hearth");
    expect(announcementSubject("eu.prod")).toBe("kv-peers-eu_prod");
  });
});
