/**
 * Changes the ledger in the folder it is given until it is killed, and prints the number of each
 * step that was committed. Step n puts hold n with its command, removes hold n - 30, and says so
 * in the issuer's sequence: all of it in one group.
 */
import { commandOf, holdOf, issuerOf, openLedger } from "./ledger-kit.ts";

const [folder = "", first = "1"] = process.argv.slice(2);
const ledger = await openLedger(folder);
const { setAside, failing } = ledger.state;
process.stdout.write(`${JSON.stringify({ setAside, failing })}\n`);
let step = Number(first);

async function go(): Promise<never> {
  for (;;) {
    const mine = step++;
    ledger.putHold(holdOf(mine));
    ledger.putCommand(commandOf(mine));
    ledger.removeHold(mine - 30);
    ledger.putIssuer(issuerOf(0, BigInt(mine)));
    if (await ledger.commit()) process.stdout.write(`${mine}\n`);
  }
}

await Promise.all([go(), go(), go(), go()]);
