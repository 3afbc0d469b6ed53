import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Trust } from "../../src/peers/index.ts";
import type { TransportMaker, TransportParts } from "../peers/transports/contract-kit.ts";
import { describeNative } from "../support/index.ts";
import { runCerts, violationsOf } from "./certs.ts";

const FOLDER = join(import.meta.dir, "../peers/transports");

async function makerOf(name: string): Promise<TransportMaker> {
  return (await import(join(FOLDER, `${name}-maker.ts`))).maker;
}

/** The same transport with changed parts. */
function spoilt(
  maker: TransportMaker,
  spoil: (parts: TransportParts) => TransportParts,
): TransportMaker {
  return { name: maker.name, make: (parts) => maker.make(spoil(parts)) };
}

describeNative("bad credentials", () => {
  const names = ["stream", "quic", "rdma"].filter((name) =>
    existsSync(join(FOLDER, `${name}-maker.ts`)),
  );
  test.each(names)(
    "certificates: at most %s bad ones are accepted, and all good ones are",
    async (name) => {
      const report = await runCerts({ makers: [await makerOf(name)], oneIn: 3 });
      expect(violationsOf(report)).toEqual([]);
      expect(report.results.length).toBeGreaterThan(30);
    },
    60_000,
  );

  test("the run reports a transport that accepts every certificate", async () => {
    const gullible = spoilt(await makerOf("stream"), (parts) => {
      const { trust } = parts;
      const authorize: Trust["authorize"] = () => ({
        ok: true,
        identity: { ...trust.credentials, fingerprint: "", notAfterMs: 0 },
      });
      const { credentials } = trust;
      return {
        ...parts,
        trust: { credentials, authorize, onChange: () => trust.onChange(() => {}) },
      };
    });
    const violations = violationsOf(await runCerts({ makers: [gullible], oneIn: 3 }));
    expect(violations).toContain("accepted: query, calling over stream");
    expect(violations).toContain("accepted: query, called over stream");
    expect(violations).toContain("accepted: expired since, calling over stream");
  });

  test("the run reports a transport that logs keys, or gives no reason", async () => {
    const maker = await makerOf("stream");
    const chatty = spoilt(maker, (parts) => {
      const { trust, log } = parts;
      const key = trust.credentials.key.split("\n")[1]!;
      return { ...parts, log: (level, text) => log(level, text, { key }) };
    });
    expect(violationsOf(await runCerts({ makers: [chatty], oneIn: 40 }))).toContain(
      "secrets in logs: 1",
    );
    const mute = spoilt(maker, (parts) => ({ ...parts, log: () => undefined }));
    const options = { makers: [mute], oneIn: 1_000, patienceMs: 100 };
    const violations = violationsOf(await runCerts(options));
    expect(violations).toContain("no reason: expired, calling over stream");
  });
});
