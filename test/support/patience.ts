/**
 * How much longer than elsewhere things may take: set where tests run on emulated processors. It
 * stretches the waits, and no measurement.
 */
export const PATIENCE = Number(process.env.HEARTH_TEST_PATIENCE ?? 1);
