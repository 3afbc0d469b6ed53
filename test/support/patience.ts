/**
 * How much longer than elsewhere things may take: set where tests run on emulated processors. It
 * stretches what is waited for, and nothing that is measured.
 */
export const PATIENCE = Number(process.env.HEARTH_TEST_PATIENCE ?? 1);
