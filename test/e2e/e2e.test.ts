import { afterAll, beforeAll, expect, test } from "bun:test";
import { describeNative, describeNats, hearthExecutable, NatsServer } from "../support/index.ts";
import { CARRIERS, faultsOf, play } from "./e2e.ts";
import { examplesNeverAnswered } from "./page.ts";
import { SCENARIOS } from "./scenarios/index.ts";
import type { Exchange } from "./stage.ts";

const TIMEOUT_MS = 120_000;

describeNative("commands from a broker, seen through the engine plane", () => {
  describeNats("commands from a broker, seen through the engine plane", () => {
    let server: NatsServer;
    let executable: string;
    const exchanges: Exchange[] = [];

    beforeAll(async () => {
      executable = await hearthExecutable();
      server = await NatsServer.start({ jetStream: true });
    }, TIMEOUT_MS);
    afterAll(async () => {
      await server[Symbol.asyncDispose]();
    });

    // Once each, over one carrier and the other in turns; `./dev test:e2e` plays all over both.
    for (const [at, scenario] of SCENARIOS.entries()) {
      const carrier = CARRIERS[at % CARRIERS.length]!;
      const name = `${scenario.name} (${carrier})`;
      const run = async () => {
        const row = await play(scenario, carrier, { executable, server });
        exchanges.push(...row.exchanges);
        expect(faultsOf(row)).toEqual([]);
        expect(row.claims).toBeGreaterThan(0);
      };
      test(name, run, TIMEOUT_MS);
    }

    test("the receipts of docs/reference/commands.md are those that were answered", () => {
      expect(examplesNeverAnswered(exchanges)).toEqual([]);
    });
  });
});
