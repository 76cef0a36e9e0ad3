//! The requests of a front end.

use std::fmt;

macro_rules! requests {
    ($($name:ident = $number:literal $variant:ident,)*) => {
        /// A request of a front end (`VHOST_USER_…`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum Request {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                $variant = $number,
            )*
        }

        impl Request {
            /// All requests that are known here.
            pub const ALL: &[Request] = &[$(Request::$variant,)*];

            /// The request of a number; `None` if it is not known.
            pub const fn from_number(number: u32) -> Option<Request> {
                match number {
                    $($number => Some(Request::$variant),)*
                    _ => None,
                }
            }

            /// Its name in the specification, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Request::$variant => stringify!($name),)* }
            }
        }
    };
}

requests! {
    GET_FEATURES = 1 GetFeatures,
    SET_FEATURES = 2 SetFeatures,
    SET_OWNER = 3 SetOwner,
    RESET_OWNER = 4 ResetOwner,
    SET_MEM_TABLE = 5 SetMemTable,
    SET_LOG_BASE = 6 SetLogBase,
    SET_LOG_FD = 7 SetLogFd,
    SET_VRING_NUM = 8 SetVringNum,
    SET_VRING_ADDR = 9 SetVringAddr,
    SET_VRING_BASE = 10 SetVringBase,
    GET_VRING_BASE = 11 GetVringBase,
    SET_VRING_KICK = 12 SetVringKick,
    SET_VRING_CALL = 13 SetVringCall,
    SET_VRING_ERR = 14 SetVringErr,
    GET_PROTOCOL_FEATURES = 15 GetProtocolFeatures,
    SET_PROTOCOL_FEATURES = 16 SetProtocolFeatures,
    GET_QUEUE_NUM = 17 GetQueueNum,
    SET_VRING_ENABLE = 18 SetVringEnable,
    SEND_RARP = 19 SendRarp,
    NET_SET_MTU = 20 NetSetMtu,
    SET_BACKEND_REQ_FD = 21 SetBackendReqFd,
    IOTLB_MSG = 22 IotlbMsg,
    SET_VRING_ENDIAN = 23 SetVringEndian,
    GET_CONFIG = 24 GetConfig,
    SET_CONFIG = 25 SetConfig,
    GET_INFLIGHT_FD = 31 GetInflightFd,
    SET_INFLIGHT_FD = 32 SetInflightFd,
    RESET_DEVICE = 34 ResetDevice,
    VRING_KICK = 35 VringKick,
    GET_MAX_MEM_SLOTS = 36 GetMaxMemSlots,
    ADD_MEM_REG = 37 AddMemReg,
    REM_MEM_REG = 38 RemMemReg,
    SET_STATUS = 39 SetStatus,
    GET_STATUS = 40 GetStatus,
}

impl Request {
    /// Its number.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether its answer is a message of its own, so that it is not acknowledged beside that.
    pub const fn has_reply(self) -> bool {
        use Request::*;
        matches!(
            self,
            GetFeatures
                | SetLogBase
                | GetVringBase
                | GetProtocolFeatures
                | GetQueueNum
                | IotlbMsg
                | GetConfig
                | GetInflightFd
                | GetMaxMemSlots
                | GetStatus
        )
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_number_and_a_number_at_most_one_request() {
        for &request in Request::ALL {
            assert_eq!(Request::from_number(request.number()), Some(request));
        }
        for unknown in [0, 26, 33, 41, u32::MAX] {
            assert_eq!(Request::from_number(unknown), None);
        }
        assert_eq!(Request::SetMemTable.to_string(), "SET_MEM_TABLE");
    }
}
