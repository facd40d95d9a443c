//! What clients have counted: the table `statistics`, which has one row.
//!
//! The row is read and written as a whole: a client merges every few seconds at most.

use super::error::StoreError;
use leasehold_core::model::StatisticsTable;
use leasehold_core::{MergeStatistics, StatisticsList};
use rusqlite::{OptionalExtension, Transaction, params};

/// Adds what a client has counted. What cannot be read is replaced.
pub(super) fn merge(sql: &Transaction<'_>, now_ms: u64, merge: &MergeStatistics) -> Result<(), StoreError> {
    let mut table = read(sql)?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    StatisticsTable::merge(&mut table, now_ms, merge);
    let state = serde_json::to_string(&table)?;
    sql.prepare_cached("INSERT OR REPLACE INTO statistics (id, state) VALUES (1, ?1)")?
        .execute(params![state])?;
    Ok(())
}

/// Lists the statistics.
pub(super) fn list(sql: &Transaction<'_>, now_ms: u64) -> Result<StatisticsList, StoreError> {
    let mut list = StatisticsList::default();
    match read(sql)?.map(|text| serde_json::from_str::<StatisticsTable>(&text)) {
        Some(Ok(mut table)) => {
            table.expire(now_ms);
            list.classes.extend(table.classes);
        }
        Some(Err(_)) => list.skipped.add(|| "the row of the statistics cannot be read".to_owned()),
        None => {}
    }
    Ok(list)
}

fn read(sql: &Transaction<'_>) -> rusqlite::Result<Option<String>> {
    sql.prepare_cached("SELECT state FROM statistics")?.query_row([], |row| row.get(0)).optional()
}
