import { systemClock } from "../../../src/core/index.ts";
import { createTrust } from "../../../src/peers/trust/index.ts";
import { blockOf } from "../../support/region-server.ts";
import {
  dial,
  Host,
  LIMITS,
  MIB,
  placesFor,
  pullPlaces,
  regionOf,
  type TransportMaker,
} from "./contract-kit.ts";

/** A peer that tests kill: serves blocks 1 to 3 of 16 MiB, or pulls them in a loop. */
const { path, role, port, credentials } = await Bun.stdin.json();
const { maker } = (await import(path)) as { maker: TransportMaker };
const host = new Host(maker, createTrust(credentials, systemClock), regionOf(0), LIMITS);
if (role === "server") {
  for (const seed of [1, 2, 3]) host.server.put(seed, 16 * MIB);
  host.server.put(4, 64 * 1024);
  // The last block never arrives, so the pull is always running.
  host.server.onServe = (served, _, signal) => {
    if (served.index < 2) return served;
    return new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined)));
  };
  console.log((await host.listen()).port);
} else {
  await host.transport.register(host.region);
  const connection = await dial(host, { host: "127.0.0.1", port }, "server");
  console.log("dialled");
  const items = [1, 2, 3].map((seed) => {
    return { ...blockOf(seed), bytesMax: 16 * MIB, generation: 0n };
  });
  const places = placesFor(items);
  while (connection.fault === null) await pullPlaces(connection, places);
}
