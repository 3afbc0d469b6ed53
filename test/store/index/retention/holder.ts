/** Opens the ledger in the folder it is given, commits one hold, and keeps it until killed. */
import { commandOf, holdOf, openLedger } from "./ledger-kit.ts";

const ledger = await openLedger(process.argv[2]!);
ledger.putHold(holdOf(1));
ledger.putCommand(commandOf(1));
process.stdout.write((await ledger.commit()) ? "open\n" : `${ledger.state.failing}\n`);
setInterval(() => ledger.state, 1_000);
