import { expect, test } from "bun:test";
import { join } from "node:path";
import { describeNative } from "../../support/index.ts";
import { standIn } from "../../support/stand-ins.ts";

const MAIN = join(import.meta.dir, "../../../src/main.ts");

/** Rows of `bench peer`, which starts its processes from the same program. */
async function benchPeer(...words: string[]) {
  const bench = Bun.spawn([process.execPath, MAIN, "bench", "peer", ...words, "--json"], {
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([
    bench.stdout.text(),
    bench.stderr.text(),
    bench.exited,
  ]);
  const lines = out.trimEnd().split("\n");
  return { code, err, rows: code === 0 ? lines.map((line) => JSON.parse(line)) : [] };
}

describeNative("bench peer", () => {
  test("a row for each transport, size and number in flight; nothing comes wrong", async () => {
    const size = ["--block-bytes", "64KiB,256KiB", "--in-flight", "1,4", "--bytes", "1MiB"];
    const plain = [...size, "--without-iperf", "--resumptions", "0"];
    const { code, err, rows } = await benchPeer("--rounds", "2", "--pulls", "0", ...plain);
    expect({ code, err }).toEqual({ code: 0, err: "" });
    const names = rows.map(({ transport, sealed, block_bytes, in_flight }) =>
      [transport, sealed, block_bytes, in_flight].join(" "),
    );
    const carriers = ["quic true", "stream true", "stream false"];
    const sizes = [65_536, 262_144].flatMap((bytes) => [1, 4].map((flight) => [bytes, flight]));
    const wanted = sizes.flatMap(([bytes, flight]) =>
      carriers.map((carrier) => `${carrier} ${bytes} ${flight}`),
    );
    expect(names).toEqual(wanted);
    for (const row of rows) {
      const rates = ["gbps", "bare_gbps", "tcp_gbps", "of_bare", "of_tcp"];
      const costs = ["p50_ms", "p99_ms", "cpu_s_per_gb", "bare_cpu_s_per_gb"];
      for (const name of [...rates, ...costs]) expect(row[name]).toBeGreaterThan(0);
      expect(row.p99_ms).toBeGreaterThanOrEqual(row.p50_ms);
      expect(row.of_tcp).toBeCloseTo(row.gbps / row.tcp_gbps);
      expect(row).toMatchObject({ wrong: 0, iperf3_gbps: null });
    }
  });

  test("bench peer over rdma uses the library named", async () => {
    const rdma = ["--transport", "rdma", "--library", standIn("libibverbs.so.1").path];
    const { code, err, rows } = await benchPeer(...rdma, "--rounds", "0", "--pulls", "100");
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(rows).toMatchObject([{ transport: "rdma", pulls: 100, wrong: 0 }]);
  });

  test("bench peer over rdma without a device ends with a message", async () => {
    const rdma = ["--transport", "rdma", "--library", "/nowhere/libibverbs.so.1"];
    const { code, err } = await benchPeer(...rdma, "--rounds", "0", "--pulls", "100");
    expect(code).not.toBe(0);
    expect(err).toContain("libibverbs");
  });

  test("many pulls: the longest of them, and memory", async () => {
    const { code, err, rows } = await benchPeer(
      ...["--rounds", "0", "--pulls", "100", "--resumptions", "0"],
    );
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(rows.map(({ transport }) => transport)).toEqual(["quic", "stream"]);
    for (const row of rows) {
      expect(row).toMatchObject({ pulls: 100, wrong: 0, block_bytes: 2 ** 20, in_flight: 8 });
      expect(row.longest_ms).toBeGreaterThanOrEqual(row.p99_ms);
      expect(row.longest_over_p50).toBeCloseTo(row.longest_ms / row.p50_ms);
      for (const end of ["holder", "asker"]) {
        // The arena of 64 MiB is part of it.
        expect(row[`${end}_rss_mb`]).toBeGreaterThan(64);
        expect(row[`${end}_rss_max_mb`]).toBeGreaterThan(64);
      }
    }
  });

  test("connections that are made twice, the second time with a ticket", async () => {
    const { code, err, rows } = await benchPeer("--rounds", "0", "--pulls", "0", "--resumptions=2");
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(rows).toMatchObject([{ transport: "quic", round_trip_ms: 40, resumed: 2, times: 2 }]);
    const [{ first_ms, again_ms, again_round_trips }] = rows;
    expect(again_ms).toBeGreaterThan(40);
    expect(first_ms).toBeGreaterThan(again_ms);
    expect(again_round_trips).toBeCloseTo(again_ms / 40);
  });
});
