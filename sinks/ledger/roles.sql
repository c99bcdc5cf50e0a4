-- Roles for a ClickHouse server with users. Run it as an administrator in the ledger's database after `kanjo migrate`, with
-- --database set to it; it may be repeated, and must be after every migration, which makes the views anew. The embedded engine
-- of `kanjo dev` has no users and needs none; there the tests check that each statement parses. After running it on a server,
-- log in as an analyst of one tenant and see that SELECT DISTINCT tenant FROM usage gives that tenant and that SELECT * FROM
-- usage_events is refused.
--
-- Nobody may change or delete what is recorded: no role has ALTER UPDATE, ALTER DELETE, TRUNCATE, DROP or OPTIMIZE.
-- Only the user that runs `kanjo migrate` may CREATE, and it need not exist between migrations.

CREATE ROLE IF NOT EXISTS kanjo_sink;
GRANT INSERT, SELECT ON usage_events TO kanjo_sink;
GRANT INSERT, SELECT ON rejected_records TO kanjo_sink;
GRANT INSERT, SELECT ON conflict_events TO kanjo_sink;
GRANT INSERT, SELECT ON manifests TO kanjo_sink;
GRANT INSERT, SELECT ON control_documents TO kanjo_sink;
GRANT INSERT, SELECT ON documents TO kanjo_sink;
GRANT INSERT, SELECT ON log_epochs TO kanjo_sink;
GRANT SELECT ON kanjo_schema TO kanjo_sink;

-- The audit, the rater and the commands read everything and record what was proved, and what was sent again.
CREATE ROLE IF NOT EXISTS kanjo_rater;
GRANT SELECT ON * TO kanjo_rater;
GRANT INSERT ON audit_ranges TO kanjo_rater;
GRANT INSERT ON superseded_audited TO kanjo_rater;
GRANT INSERT ON metered_totals TO kanjo_rater;
GRANT INSERT ON metering_queries TO kanjo_rater;
GRANT INSERT ON replays TO kanjo_rater;

-- The views read the tables as kanjo_views, a user nobody can log in as, so that an analyst needs no right on a table.
CREATE USER IF NOT EXISTS kanjo_views HOST NONE;
GRANT SELECT ON * TO kanjo_views;
ALTER TABLE audit_proven MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE superseded MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE usage MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE corrections MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE usage_daily MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE ai_cost_daily MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE rejected MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE conflicts MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE invoices MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE invoice_lines MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;
ALTER TABLE totals MODIFY SQL SECURITY DEFINER DEFINER = kanjo_views;

CREATE ROLE IF NOT EXISTS kanjo_analyst;
GRANT SELECT ON usage TO kanjo_analyst;
GRANT SELECT ON corrections TO kanjo_analyst;
GRANT SELECT ON usage_daily TO kanjo_analyst;
GRANT SELECT ON ai_cost_daily TO kanjo_analyst;
GRANT SELECT ON rejected TO kanjo_analyst;
GRANT SELECT ON conflicts TO kanjo_analyst;
GRANT SELECT ON invoices TO kanjo_analyst;
GRANT SELECT ON invoice_lines TO kanjo_analyst;
GRANT SELECT ON totals TO kanjo_analyst;

-- An analyst of one tenant is a user named tenant/<tenant> with this role, and sees that tenant alone. rejected is not for
-- them: whose a refused record is, nobody has checked.
CREATE ROLE IF NOT EXISTS kanjo_tenant_analyst;
GRANT SELECT ON usage TO kanjo_tenant_analyst;
GRANT SELECT ON corrections TO kanjo_tenant_analyst;
GRANT SELECT ON usage_daily TO kanjo_tenant_analyst;
GRANT SELECT ON ai_cost_daily TO kanjo_tenant_analyst;
GRANT SELECT ON conflicts TO kanjo_tenant_analyst;
GRANT SELECT ON invoices TO kanjo_tenant_analyst;
GRANT SELECT ON invoice_lines TO kanjo_tenant_analyst;
GRANT SELECT ON totals TO kanjo_tenant_analyst;
CREATE ROW POLICY IF NOT EXISTS kanjo_own ON usage, corrections, usage_daily, ai_cost_daily, conflicts, invoices, invoice_lines, totals
    FOR SELECT USING concat('tenant/', tenant) = currentUser() TO kanjo_tenant_analyst;
-- With a policy on a view, whoever has none would see nothing.
CREATE ROW POLICY IF NOT EXISTS kanjo_all ON usage, corrections, usage_daily, ai_cost_daily, conflicts, invoices, invoice_lines, totals
    FOR SELECT USING 1 TO ALL EXCEPT kanjo_tenant_analyst;
